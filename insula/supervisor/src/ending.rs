//! How a node has ended, as its policy takes it.

use insula_abi as abi;
use insula_driver::CallError;
use insula_node::policy::Ending;
use insula_node::{Handle, record_crash};

/// How a stopped node ended; `None` if it was stopped from outside. A reset whose log has a panic
/// is a crash. `restarts` tells whether one that was stopped for a finding is to be started again.
pub(super) fn ending(handle: &mut Handle, restarts: bool) -> Result<Option<Ending>, CallError> {
    let reset = handle.info.reason == abi::Reason::RESET;
    record_crash(handle)?;
    Ok(match handle.info.reason {
        abi::Reason::POWER_OFF | abi::Reason::HALTED => Some(Ending::Off),
        abi::Reason::RESET => Some(Ending::Reset),
        abi::Reason::CRASHED => Some(Ending::Crash {
            asked_for_reset: reset,
        }),
        abi::Reason::HUNG => Some(Ending::Hang),
        abi::Reason::DEVICE_LOST => Some(Ending::DeviceLost),
        abi::Reason::VIOLATION => Some(Ending::Violation),
        abi::Reason::FINDING => Some(Ending::Finding { restart: restarts }),
        _ => None,
    })
}
