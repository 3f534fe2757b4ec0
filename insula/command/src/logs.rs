//! `insula logs`.

use std::thread::sleep;
use std::time::Duration;

use insula_driver::name::Name;
use insula_node::{Handle, LogRecord, NodeLog, detect_crash, no_log_yet, wait_for_last_lines};

use super::cli::Logs;
use super::node::observe;
use super::{Context, Failure, container, output};

/// Interval at which a followed log is read.
const INTERVAL: Duration = Duration::from_millis(50);
/// Reads of the log for each check of the node.
const ROUNDS_PER_CHECK: u32 = 10;

pub(super) fn logs(context: &Context, options: &Logs) -> Result<(), Failure> {
    if let Some(container) = container::find(context, &options.name)? {
        return container::logs(context, &container, options);
    }
    let mut handle = observe(&context.driver()?, &options.name)?;
    if options.follow {
        follow(&mut handle, options)
    } else {
        show(&handle, options)
    }
}

fn show(handle: &Handle, options: &Logs) -> Result<(), Failure> {
    let log = NodeLog::open(handle)?;
    let placement = log
        .locate()
        .ok_or_else(|| no_log_yet(options.name.as_str()))?;
    if let Some(count) = options.tail {
        return log
            .last(placement, count)?
            .iter()
            .try_for_each(|one| print(one, options.json));
    }
    let mut reader = log.reader(placement);
    while let Some(record) = log.next(&mut reader)? {
        print(&record, options.json)?;
    }
    note_lost(reader.lost());
    Ok(())
}

/// Prints the log until the node stops. Its memory is mapped, so the log stays readable to the end
/// even if the node is removed meanwhile.
fn follow(handle: &mut Handle, options: &Logs) -> Result<(), Failure> {
    let log = NodeLog::open(handle)?;
    let Some(placement) = wait_for_log(&log, handle, &options.name)? else {
        return Ok(());
    };
    let mut reader = log.reader(placement);
    if let Some(count) = options.tail {
        let last = log.last(placement, count)?;
        if let Some(first) = last.first() {
            reader.seek(first.record.seq);
        }
    }
    for round in 0_u32.. {
        while let Some(record) = log.next(&mut reader)? {
            print(&record, options.json)?;
        }
        if round % ROUNDS_PER_CHECK == 0 && has_ended(handle) {
            break;
        }
        sleep(INTERVAL);
    }
    reader.set_stopped(true);
    while let Some(record) = log.next(&mut reader)? {
        print(&record, options.json)?;
    }
    note_lost(reader.lost());
    note_end(handle, &options.name);
    Ok(())
}

fn wait_for_log(
    log: &NodeLog,
    handle: &mut Handle,
    name: &Name,
) -> Result<Option<kimage::log::Placement>, Failure> {
    loop {
        if let Some(placement) = log.locate() {
            return Ok(Some(placement));
        }
        if has_ended(handle) {
            note_end(handle, name);
            return Ok(None);
        }
        sleep(INTERVAL);
    }
}

/// Whether the node has stopped or been removed, or has crashed without a supervisor that would
/// stop it.
fn has_ended(handle: &mut Handle) -> bool {
    if handle.refresh().is_err() {
        return true;
    }
    detect_crash(handle);
    let is_left = handle.is_crashed() && handle.is_running() && !handle.is_supervised();
    if is_left {
        wait_for_last_lines(handle);
    }
    is_left || handle.is_stopped()
}

fn print(record: &LogRecord, json: bool) -> Result<(), Failure> {
    if json {
        output::line(&serde_json::to_string(record)?)
    } else {
        output::line(&record.text())
    }
}

fn note_lost(lost: u64) {
    if lost > 0 {
        output::note(&format!(
            "{lost} records were overwritten before they could be read"
        ));
    }
}

fn note_end(handle: &Handle, name: &Name) {
    let view = handle.view();
    let reason = view
        .reason
        .map_or_else(String::new, |reason| format!(" ({reason})"));
    output::note(&format!("the node '{name}' is {}{reason}", view.state));
}
