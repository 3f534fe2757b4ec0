//! The node's main program, which `insula run -- PROGRAM` gives it: its output goes to the kernel log and to
//! the commands that are attached to it (`insula attach`), whose input and signals it gets.
//!
//! The first process has it, so that it does not end with the server. The server connects commands to a
//! socket here, by which they send and receive the same messages as for other programs.

use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use insula_agent::frame::{self, FrameError, Reader};
use insula_agent::options::Options;
use insula_agent::{Attach, Exec, ExitStatus, Output, Terminal, TerminalSize};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::log::{LogLines, log};
use crate::program::{Program, Signalled};
use crate::session::{Listener, SharedInput, Sink, Stdin, Target, forward_output, send};

/// The socket, in the abstract namespace: a root file system need not have a place for it.
const SOCKET: &str = "\0insula-main-program";
/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;
/// Time for which the program waits for an attached command that takes no output, before it is left behind.
const TAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// What a program without a user's terminal is told of its own.
const TERMINAL: (&[u8], TerminalSize) = (
    b"xterm",
    TerminalSize {
        rows: 24,
        columns: 80,
    },
);

/// Time for which a program that is to be attached to waits for that.
const ATTACH_TIMEOUT: Timespec = Timespec {
    tv_sec: 30,
    tv_nsec: 0,
};

/// Commands that are attached.
static ATTACHED: AtomicUsize = AtomicUsize::new(0);

/// Whether a command is attached: it takes its leave when it has been told of the program's end.
pub(crate) fn is_attached() -> bool {
    ATTACHED.load(Ordering::Relaxed) > 0
}

/// The running program.
pub(crate) struct MainProgram {
    pid: Pid,
    shared: Arc<Shared>,
    forwarders: Vec<JoinHandle<()>>,
}

/// What attached commands share.
struct Shared {
    target: Arc<Target>,
    stdin: Option<SharedInput>,
    terminal: Option<File>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    clients: Vec<Sink>,
    ended: Option<ExitStatus>,
}

impl MainProgram {
    /// Starts the program that the options name, if any, and has it take commands from the socket.
    ///
    /// # Errors
    /// Why it cannot be started.
    pub(crate) fn start(options: Options, socket: Option<Socket>) -> io::Result<Option<Self>> {
        let Some(name) = options.run.first() else {
            return Ok(None);
        };
        let name = name.rsplit(|&byte| byte == b'/').next().unwrap_or(name);
        let name = String::from_utf8_lossy(name).into_owned();
        let is_interactive = options.interactive;
        let awaited = socket.as_ref().filter(|_| options.attached);
        let has_command = awaited.is_some_and(wait_for_command);
        let started = Program::start(&exec_of(options));
        let mut program =
            started.map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))?;
        let pid = Pid::from_child(&program.child);
        let end = Arc::new(pidfd_open(pid, PidfdFlags::empty())?);
        let stdin = program.stdin.take().filter(|_| is_interactive);
        let shared = Arc::new(Shared {
            target: Arc::new(Target::new(pid)),
            stdin: stdin.map(SharedInput::new),
            terminal: program.terminal.take(),
            state: Mutex::default(),
        });
        if let (true, Some(socket)) = (has_command, awaited) {
            accept_first(socket, &shared);
        }
        let outputs = [
            (program.stdout.take(), false),
            (program.stderr.take(), true),
        ];
        let forwarders = outputs.into_iter().filter_map(|(from, is_stderr)| {
            let (shared, end, name) = (Arc::clone(&shared), Arc::clone(&end), name.clone());
            let from = from?;
            Some(thread::spawn(move || {
                shared.forward(&name, from, &end, is_stderr)
            }))
        });
        let forwarders = forwarders.collect();
        if let Some(socket) = socket {
            accept(socket, &shared);
        }
        Ok(Some(Self {
            pid,
            shared,
            forwarders,
        }))
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Tells attached commands of its end, once they have all of its output.
    pub(crate) fn end(self, status: ExitStatus) {
        self.shared.target.mark_exited();
        for forwarder in self.forwarders {
            // One that panicked has ended as well.
            let _ = forwarder.join();
        }
        let mut state = self.shared.state();
        state.ended = Some(status);
        for client in mem::take(&mut state.clients) {
            // It may have left.
            let _ = send(&client, &Output::Ended(status));
        }
    }
}

/// The program as it is started for other commands.
fn exec_of(options: Options) -> Exec {
    let variable = |word: Vec<u8>| {
        let middle = word.iter().position(|&byte| byte == b'=')?;
        Some((word[..middle].to_owned(), word[middle + 1..].to_owned()))
    };
    let environment = options.environment.into_iter();
    let (kind, size) = TERMINAL;
    Exec {
        words: options.run,
        environment: environment.filter_map(variable).collect(),
        directory: options.directory,
        stdin: options.interactive,
        terminal: options.terminal.then(|| Terminal {
            kind: kind.to_vec(),
            size,
        }),
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forwards output to the log and to attached commands.
    fn forward(&self, name: &str, from: File, end: &OwnedFd, is_stderr: bool) {
        let mut lines = LogLines::new(name);
        // Ends with the program, or its terminal.
        let _ = forward_output(from, end, |bytes| {
            lines.add(bytes);
            self.tell(&match is_stderr {
                true => Output::Stderr(bytes),
                false => Output::Stdout(bytes),
            });
            Ok(())
        });
    }

    /// Sends output to all attached commands, without those that take none.
    fn tell(&self, output: &Output<'_>) {
        let mut state = self.state();
        state.clients.retain(|client| send(client, output).is_ok());
    }

    /// Serves a command until it leaves; `added` is called when it is told of all output.
    fn serve(&self, stream: Socket, added: impl FnOnce()) -> Result<(), FrameError> {
        let mut reader = Reader::new(stream.try_clone()?);
        let Some(Attach { stdin }) = reader.read()? else {
            return Ok(());
        };
        stream.set_write_timeout(Some(TAKE_TIMEOUT))?;
        let sink: Sink = Arc::new(Mutex::new(stream));
        let input = self.stdin.clone().filter(|_| stdin);
        let listener = Listener {
            target: Arc::clone(&self.target),
            signalled: Signalled::Group,
            is_terminal: self.terminal.is_some(),
            terminal: self.terminal.as_ref().map(File::try_clone).transpose()?,
            stdin: Stdin::new(input, &sink),
        };
        self.add(&sink)?;
        added();
        listener.listen(reader);
        let mut state = self.state();
        state.clients.retain(|client| !Arc::ptr_eq(client, &sink));
        Ok(())
    }

    /// Has a command told of all output from now on, or of the end.
    fn add(&self, sink: &Sink) -> io::Result<()> {
        let mut state = self.state();
        match state.ended {
            Some(status) => send(sink, &Output::Ended(status)),
            None => {
                state.clients.push(Arc::clone(sink));
                Ok(())
            }
        }
    }
}

/// Opens the socket for commands, if there is to be a program. They come as soon as the server runs, and wait
/// there for the program. Without the socket it runs all the same.
pub(crate) fn listen(options: &Options) -> Option<Socket> {
    options.run.first()?;
    let opened = open();
    opened
        .inspect_err(|error| log(&format!("no command can be attached: {error}")))
        .ok()
}

/// Lets commands attach to the program.
fn accept(socket: Socket, shared: &Arc<Shared>) {
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        loop {
            match socket.accept() {
                Ok((stream, _)) if is_root(&stream) => serve(&shared, stream, || {}),
                Ok(_) => {}
                // Out of descriptors or memory for the moment.
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    });
}

/// Waits until a command comes, or too long.
fn wait_for_command(socket: &Socket) -> bool {
    let mut events = [PollFd::new(socket, PollFlags::IN)];
    poll(&mut events, Some(&ATTACH_TIMEOUT)).is_ok_and(|ready| ready > 0)
}

/// Lets the command that has come attach, and waits until it is told of all output.
fn accept_first(socket: &Socket, shared: &Arc<Shared>) {
    let Ok((stream, _)) = socket.accept() else {
        return;
    };
    if !is_root(&stream) {
        return;
    }
    let (added, is_added) = mpsc::channel();
    serve(shared, stream, move || {
        let _ = added.send(());
    });
    // It may have gone, or say nothing.
    let _ = is_added.recv_timeout(TAKE_TIMEOUT);
}

fn open() -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(SOCKET)?)?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// Whether it is the server, and not another user's program.
fn is_root(stream: &Socket) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    peer.is_ok_and(|peer| peer.uid.is_root())
}

fn serve(shared: &Arc<Shared>, stream: Socket, added: impl FnOnce() + Send + 'static) {
    let shared = Arc::clone(shared);
    ATTACHED.fetch_add(1, Ordering::Relaxed);
    thread::spawn(move || {
        // Who breaks the protocol is detached.
        let _ = shared.serve(stream, added);
        ATTACHED.fetch_sub(1, Ordering::Relaxed);
    });
}

/// Connects a command of the base to the program, in the server.
///
/// # Errors
/// Those of the connection to the command.
pub(crate) fn connect(attach: &Attach, stream: Socket) -> Result<(), FrameError> {
    let program = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    if program.connect(&SockAddr::unix(SOCKET)?).is_err() {
        let refused = Output::Refused("the node runs no program");
        return Ok(frame::write(&stream, &refused)?);
    }
    frame::write(&program, attach)?;
    let (from, to) = (program.try_clone()?, stream.try_clone()?);
    thread::spawn(move || pass(&from, &to));
    pass(&stream, &program);
    Ok(())
}

/// Passes on all that one sends, then the end.
fn pass(mut from: &Socket, mut to: &Socket) {
    // The other one may have gone first.
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(std::net::Shutdown::Both);
}
