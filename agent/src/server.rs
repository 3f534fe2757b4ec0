//! The process that serves the command.

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use insula_agent::frame::{self, FrameError, Reader};
use insula_agent::{COMMAND_CID, COMMAND_PORT_MAX, PORT, Request};
use vsock::{VMADDR_CID_ANY, VsockAddr, VsockListener, VsockStream};

use crate::containers::Containers;
use crate::log::log;
use crate::{clock, rename, session, transfer};

/// Role of this program: the server.
pub(crate) const SERVE: &str = "serve";
/// Timeout of the command's request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Serves connections forever.
pub(crate) fn serve() -> ExitCode {
    // Before anybody asks for them.
    let containers = Containers::recover();
    let listener = match VsockListener::bind_with_cid_port(VMADDR_CID_ANY, PORT) {
        Ok(listener) => listener,
        Err(error) => {
            log(&format!("the socket to the base cannot be opened: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let containers = Arc::new(containers);
    let with_cards = Arc::clone(&containers);
    thread::spawn(move || {
        let ended = with_cards.renew_cards();
        ended.map_err(|error| log(&format!("containers' cards are not renewed: {error}")))
    });
    loop {
        match listener.accept() {
            Ok((stream, peer)) if is_command(&peer) => {
                let containers = Arc::clone(&containers);
                thread::spawn(move || {
                    if let Err(error) = serve_one(stream, &containers) {
                        log(&format!("connection from the base failed: {error}"));
                    }
                });
            }
            Ok(_) => {}
            // Out of descriptors or memory for the moment.
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Whether the peer is the base's command: on the base, with a privileged port.
fn is_command(peer: &VsockAddr) -> bool {
    peer.cid() == COMMAND_CID && peer.port() <= COMMAND_PORT_MAX
}

fn serve_one(stream: VsockStream, containers: &Containers) -> Result<(), FrameError> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut reader = Reader::new(stream.try_clone()?);
    let Some(request) = reader.read()? else {
        return Ok(());
    };
    stream.set_read_timeout(None)?;
    match request {
        Request::Exec(exec) => session::run(&exec, stream, reader),
        Request::Send(path) => Ok(transfer::send(&path, &stream)?),
        Request::Receive(receive) => Ok(transfer::receive(&receive, &stream, reader)?),
        Request::Container(request) => containers.serve(request, &stream, reader),
        Request::Clock => clock::serve(&stream, reader),
        Request::Rename(identity) => Ok(frame::write(&stream, &rename::rename(&identity))?),
    }
}
