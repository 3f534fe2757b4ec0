//! gdb's remote protocol over a node's memory and, if known, its cores' registers.
//!
//! Cores are gdb's threads. Everything is read-only: the node is neither stopped nor changed.

mod target;
mod transport;

use std::fmt;

use gdbstub::conn::Connection;
use gdbstub::stub::state_machine::GdbStubStateMachine;
use gdbstub::stub::{DisconnectReason, GdbStub};
use insula_base::error::Error;

pub use target::NodeTarget;
pub use transport::{GdbStream, Listener};

/// What every error leaves.
const UNCHANGED: &str = "the node was left as it is";

/// Serves one gdb until it disconnects.
///
/// # Errors
/// When the connection breaks, or the data is not gdb's protocol.
pub fn serve(target: &mut NodeTarget<'_>, stream: GdbStream) -> Result<(), Error> {
    let mut state = GdbStub::new(stream)
        .run_state_machine(target)
        .map_err(ended)?;
    loop {
        state = match state {
            GdbStubStateMachine::Idle(mut idle) => {
                let byte = match idle.borrow_conn().read_byte() {
                    Ok(Some(byte)) => byte,
                    Ok(None) => return Ok(()),
                    Err(error) => return Err(ended(error)),
                };
                idle.incoming_data(target, byte)
            }
            // The target never runs, so there is nothing to interrupt or to wait for.
            GdbStubStateMachine::CtrlCInterrupt(interrupted) => {
                interrupted.interrupt_handled(target, None::<target::StopReason>)
            }
            GdbStubStateMachine::Running(mut running) => {
                let _ = running.borrow_conn().flush();
                running.report_stop(target, target::STOPPED)
            }
            GdbStubStateMachine::Disconnected(gone) => {
                return match gone.get_reason() {
                    DisconnectReason::Disconnect | DisconnectReason::Kill => Ok(()),
                    reason => Err(ended(format_args!("{reason:?}"))),
                };
            }
        }
        .map_err(ended)?;
    }
}

/// The error for a session that has ended for that reason.
fn ended(reason: impl fmt::Display) -> Error {
    Error::new(format!("the session with gdb has ended: {reason}")).leaving(UNCHANGED)
}
