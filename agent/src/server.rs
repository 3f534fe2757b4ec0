//! The process that serves the command.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use insula_agent::base::OWN_SOCKET;
use insula_agent::container::{ContainerAnswer, ContainerRequest};
use insula_agent::copy::CopyMessage;
use insula_agent::frame::{self, FrameError, Reader};
use insula_agent::usage::Usage;
use insula_agent::{COMMAND_CID, COMMAND_PORT_MAX, ExecAs, PORT, Request};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::containers::{Containers, remove_parent};
use crate::log::{log, use_standard_error};
use crate::program::Program;
use crate::{clock, main_program, rename, session, transfer};

/// Role of this program: the server of a node.
pub(crate) const SERVE: &str = "serve";
/// Role of this program: the server of the base.
pub(crate) const SERVE_BASE: &str = "serve-base";
/// Timeout of the command's request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Any of this kernel's addresses (`VMADDR_CID_ANY`).
const ANY_CID: u32 = u32::MAX;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Whom a server serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    Node,
    Base,
}

/// Serves connections to a node forever.
pub(crate) fn serve() -> ExitCode {
    serve_on(Kernel::Node)
}

/// Serves connections to the agent of the base, until it is told to end.
pub(crate) fn serve_base() -> ExitCode {
    use_standard_error();
    serve_on(Kernel::Base)
}

fn serve_on(kernel: Kernel) -> ExitCode {
    // Before anybody asks for them.
    let containers = Containers::recover();
    if kernel == Kernel::Base {
        // Those of a killed server may have lost theirs with its namespace.
        containers.renew_all_cards();
    }
    let listener = match listen(kernel) {
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
            Ok((stream, peer)) if kernel == Kernel::Base || is_command(&peer) => {
                let containers = Arc::clone(&containers);
                thread::spawn(move || {
                    if let Err(error) = serve_one(kernel, stream, &containers) {
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

fn listen(kernel: Kernel) -> io::Result<Socket> {
    let (domain, address) = match kernel {
        Kernel::Node => (Domain::VSOCK, SockAddr::vsock(ANY_CID, PORT)),
        Kernel::Base => (Domain::UNIX, SockAddr::unix(OWN_SOCKET)?),
    };
    let socket = Socket::new(domain, Type::STREAM, None)?;
    if kernel == Kernel::Base {
        // That of a server that was killed.
        let _ = fs::remove_file(OWN_SOCKET);
    }
    socket.bind(&address)?;
    if kernel == Kernel::Base {
        let mode = fs::Permissions::from_mode(0o600);
        fs::set_permissions(OWN_SOCKET, mode)?;
    }
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// Whether the peer is the base's command: on the base, with a privileged port.
fn is_command(peer: &SockAddr) -> bool {
    let peer = peer.as_vsock_address();
    peer.is_some_and(|(cid, port)| cid == COMMAND_CID && port <= COMMAND_PORT_MAX)
}

fn serve_one(kernel: Kernel, stream: Socket, containers: &Containers) -> Result<(), FrameError> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut reader = Reader::new(stream.try_clone()?);
    let Some(request) = reader.read()? else {
        return Ok(());
    };
    stream.set_read_timeout(None)?;
    match (request, kernel) {
        (Request::Container(ContainerRequest::End), Kernel::Base) => end(containers, &stream),
        (Request::Container(request), _) => containers.serve(request, &stream, reader),
        (Request::ExecAs(request), _) if request.container.is_some() => {
            session::run(|| containers.run_in(&request), stream, reader)
        }
        (Request::Detached(request), _) if request.container.is_some() => {
            let name = program_name(&request);
            session::run_detached(&name, || containers.run_in(&request), stream)
        }
        (Request::In { container, request }, _) => {
            serve_in(containers, (&container, *request), stream, reader)
        }
        // The base has its own programs for all else.
        (_, Kernel::Base) => Err(io::Error::from(io::ErrorKind::Unsupported).into()),
        (Request::Exec(exec), _) => session::run(|| Program::start(&exec), stream, reader),
        (Request::ExecAs(request), _) => {
            session::run(|| Program::start_as(&request, None), stream, reader)
        }
        (Request::Detached(request), _) => {
            let name = program_name(&request);
            session::run_detached(&name, || Program::start_as(&request, None), stream)
        }
        (Request::Send(path), _) => Ok(transfer::send(&path, &stream)?),
        (Request::Receive(receive), _) => Ok(transfer::receive(&receive, &stream, reader)?),
        (Request::Attach(attach), _) => main_program::connect(&attach, stream),
        (Request::Clock, _) => clock::serve(&stream, reader),
        (Request::Usage, _) => {
            let usage = Usage::read(Path::new("/")).map_err(|error| error.to_string());
            Ok(frame::write(&stream, &usage)?)
        }
        (Request::Pod(container), _) => containers.run_in_pod(&container, stream, reader),
        (Request::Rename(identity), _) => Ok(frame::write(&stream, &rename::rename(&identity))?),
    }
}

/// The name of a program without its folder.
fn program_name(request: &ExecAs) -> String {
    let path = request.exec.words.first();
    let name = path.and_then(|path| path.rsplit(|&byte| byte == b'/').next());
    String::from_utf8_lossy(name.unwrap_or_default()).into_owned()
}

/// Copies files of a container, or to it.
fn serve_in(
    containers: &Containers,
    (container, request): (&str, Request),
    stream: Socket,
    reader: Reader<Socket>,
) -> Result<(), FrameError> {
    let refused = stream.try_clone()?;
    let done = containers.in_mounts(container, move || match request {
        Request::Send(path) => transfer::send(&path, &stream),
        Request::Receive(receive) => transfer::receive(&receive, &stream, reader),
        _ => Err(io::ErrorKind::Unsupported.into()),
    });
    // A copy that has begun has told of its own errors, and is not listened to any more.
    done.or_else(|error| frame::write(&refused, &CopyMessage::Failed(&error.to_string())))?;
    Ok(())
}

/// Ends this process, unless there are containers.
fn end(containers: &Containers, stream: &Socket) -> Result<(), FrameError> {
    containers.if_none(|| {
        remove_parent();
        // Who asked may have gone.
        let _ = frame::write(stream, &ContainerAnswer::Done);
        process::exit(0)
    });
    let refused = ContainerAnswer::Refused("it has containers".to_owned());
    Ok(frame::write(stream, &refused)?)
}
