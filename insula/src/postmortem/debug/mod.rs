//! gdb's remote protocol over a node's memory and, if they can be had, its cores' registers.
//!
//! A core is a thread to gdb. Everything is only read: the node is not stopped, nor changed.

mod target;
mod transport;

use gdbstub::conn::Connection;
use gdbstub::stub::state_machine::GdbStubStateMachine;
use gdbstub::stub::{DisconnectReason, GdbStub};

pub use target::NodeTarget;
pub use transport::{Listener, TransportError, Wire};

use super::SubjectError;

/// Why gdb is not answered (any more). The node was left as it is.
#[derive(Debug, thiserror::Error)]
pub enum DebugError {
    /// The node cannot be looked into.
    #[error(transparent)]
    Subject(#[from] SubjectError),
    /// Its kernel does not tell where its page tables are.
    #[error("the kernel of the node cannot be understood: {0}; the node was left as it is")]
    Kernel(#[from] kimage::running::RunningError),
    /// gdb cannot be reached.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// What came is not gdb's protocol, or the connection broke.
    #[error("the session with gdb has ended: {0}; the node was left as it is")]
    Session(String),
}

/// Answers one gdb until it goes.
///
/// # Errors
/// [`DebugError::Session`] when the connection breaks, or speaks something else.
pub fn answer(target: &mut NodeTarget<'_>, wire: Wire) -> Result<(), DebugError> {
    let failed = |error: &dyn std::fmt::Display| DebugError::Session(error.to_string());
    let mut state = GdbStub::new(wire)
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
            // It never runs on, so there is nothing to interrupt or to wait for.
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
