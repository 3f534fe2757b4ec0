//! gdb's remote protocol over a node's memory and, if known, its cores' registers.
//!
//! Cores are gdb's threads. Everything is read-only: the node is neither stopped nor changed.

mod target;
mod transport;

use gdbstub::conn::Connection;
use gdbstub::stub::state_machine::GdbStubStateMachine;
use gdbstub::stub::{DisconnectReason, GdbStub};

pub use target::NodeTarget;
pub use transport::{GdbStream, Listener, TransportError};

use super::InspectError;

/// Why gdb is not served (any more). The node was left as it is.
#[derive(Debug, thiserror::Error)]
pub enum DebugError {
    /// The node cannot be inspected.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// Its kernel's page tables cannot be found.
    #[error("the kernel of the node cannot be inspected: {0}; the node was left as it is")]
    Kernel(#[from] kimage::running::RunningError),
    /// The connection to gdb failed.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The data is not gdb's protocol, or the connection broke.
    #[error("the session with gdb has ended: {0}; the node was left as it is")]
    Session(String),
}

/// Serves one gdb until it disconnects.
///
/// # Errors
/// [`DebugError::Session`] when the connection breaks, or the data is not gdb's protocol.
pub fn serve(target: &mut NodeTarget<'_>, stream: GdbStream) -> Result<(), DebugError> {
    let failed = |error: &dyn std::fmt::Display| DebugError::Session(error.to_string());
    let mut state = GdbStub::new(stream)
        .run_state_machine(target)
        .map_err(|error| failed(&error))?;
    loop {
        state = match state {
            GdbStubStateMachine::Idle(mut idle) => {
                let byte = match idle.borrow_conn().read_byte() {
                    Ok(Some(byte)) => byte,
                    Ok(None) => return Ok(()),
                    Err(error) => return Err(failed(&error)),
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
                    reason => Err(DebugError::Session(format!("{reason:?}"))),
                };
            }
        }
        .map_err(|error| failed(&error))?;
    }
}
