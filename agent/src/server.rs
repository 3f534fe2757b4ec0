//! The process that listens to the command.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use insula_agent::frame::{FrameError, Reader};
use insula_agent::{COMMAND_CID, COMMAND_PORT_MAX, PORT, Request};
use vsock::{VMADDR_CID_ANY, VsockAddr, VsockListener, VsockStream};

use crate::say::say;
use crate::{session, transfer};

/// The role in which this program is the server.
pub(crate) const SERVE: &str = "serve";
/// How long the command may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves without end.
pub(crate) fn serve() -> ExitCode {
    let listener = match VsockListener::bind_with_cid_port(VMADDR_CID_ANY, PORT) {
        Ok(listener) => listener,
        Err(error) => {
            say(&format!("there are no sockets to the base: {error}"));
            return ExitCode::FAILURE;
        }
    };
    loop {
        match listener.accept() {
            Ok((stream, peer)) if is_command(&peer) => drop(thread::spawn(move || {
                if let Err(error) = attend(stream) {
                    say(&format!("a connection from the base: {error}"));
                }
            })),
            Ok(_) => {}
            // Of descriptors or memory there are none left for the moment.
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Whether it is the base's command, and not anybody there who can make a socket.
fn is_command(peer: &VsockAddr) -> bool {
    peer.cid() == COMMAND_CID && peer.port() <= COMMAND_PORT_MAX
}

fn attend(stream: VsockStream) -> Result<(), FrameError> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut reader = Reader::new(stream.try_clone()?);
    let Some(request) = reader.read()? else {
        return Ok(());
    };
    stream.set_read_timeout(None)?;
    match request {
        Request::Exec(exec) => session::run(&exec, stream, reader),
        Request::Send(path) => Ok(transfer::send(&path, &stream)?),
        Request::Take(take) => Ok(transfer::take(&take, &stream, reader)?),
    }
}
