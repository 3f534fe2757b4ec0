//! `insula wait`.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use insula_abi::Reason;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_exec::container::{self, ContainerRecord};
use insula_node as node;

use super::container::find;
use super::{Context, Failure, output};

/// Interval at which a node or container is looked at.
const INTERVAL: Duration = Duration::from_millis(100);
/// What a shell says of a program that SIGKILL has ended.
const KILLED: u8 = 137;

/// Waits for each in turn, and prints its status.
pub(super) fn wait(context: &Context, names: &[Name]) -> Result<(), Failure> {
    for name in names {
        output::line(&status(context, name)?.to_string())?;
    }
    Ok(())
}

fn status(context: &Context, name: &Name) -> Result<u8, Failure> {
    let driver = context.driver()?;
    if let Some(record) = find(context, name)? {
        return status_of_container(context, &driver, record);
    }
    let mut handle = node::find(&driver, name)?;
    loop {
        node::detect_crash(&mut handle);
        if handle.is_stopped() && !handle.is_restarting() {
            return Ok(status_of(handle.info.reason));
        }
        sleep(INTERVAL);
        if handle.refresh().is_err() {
            // Removed: by `run --rm` only if it has not failed.
            return Ok(0);
        }
    }
}

/// Waits for the end of a container, wherever it is moved meanwhile.
fn status_of_container(
    context: &Context,
    driver: &Driver,
    mut record: ContainerRecord,
) -> Result<u8, Failure> {
    loop {
        let view = container::view(driver, &record);
        let Some(now) = find(context, &record.name)? else {
            // Removed, which ends it.
            return Ok(KILLED);
        };
        // What was seen of a container that is being moved is not its end.
        let is_there = now == record && now.moving_to.is_none();
        if is_there && (view.state == "exited" || now.node.is_removed(driver)) {
            return Ok(view.exit_code.unwrap_or(KILLED));
        }
        record = now;
        // Its log ends with it, or with its being there: which of both, is looked at again.
        let _ = container::log(driver, &record, true, io::sink());
        sleep(INTERVAL);
    }
}

/// The status of a node that has stopped for that reason.
pub(super) fn status_of(reason: Reason) -> u8 {
    match reason {
        Reason::POWER_OFF | Reason::RESET | Reason::HALTED => 0,
        Reason::STOPPED | Reason::KILLED | Reason::BASE => KILLED,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_have_the_status_of_failures() {
        assert_eq!(status_of(Reason::POWER_OFF), 0);
        assert_eq!(status_of(Reason::KILLED), 137);
        for reason in [Reason::CRASHED, Reason::HUNG, Reason::VIOLATION, Reason(99)] {
            assert_eq!(status_of(reason), 1);
        }
    }
}
