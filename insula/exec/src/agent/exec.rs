//! Running a program in a Linux node, or in a container.

use std::env;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread;

use insula_agent::frame::{self, BYTES_MAX, FrameError, Reader};
use insula_agent::pod::{OwnNamespaces, PodContainer};
use insula_agent::{Exec, ExecAs, ExitStatus, Input, Output, Request, STDIN_WINDOW, Terminal};
use insula_base::error::{Error, Kind};
use insula_driver::Driver;
use insula_driver::name::Name;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::Signals;
use socket2::Socket;

use super::detach::{DetachKeys, Scanner};
use super::location::Location;
use super::terminal::{self, RawTerminal};

/// Signals to this process that are forwarded to the program.
const FORWARDED: [i32; 7] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCONT];

/// A program to run.
#[derive(Clone, Debug)]
pub struct AgentExec<'a> {
    /// Where.
    pub at: &'a Location,
    /// The container there that it joins, if it does.
    pub container: Option<&'a Name>,
    /// The container of a pod that begins with it, if one does.
    pub begins: Option<Begins<'a>>,
    /// Its user, and group, as `USER[:GROUP[,GROUP]...]`; root if nothing is said.
    pub user: Option<&'a str>,
    /// Its path in the node, or its name in `PATH` there, then its arguments; empty for a shell.
    pub words: &'a [OsString],
    /// Additional environment variables.
    pub environment: &'a [(OsString, OsString)],
    /// Its working directory, `/` by default.
    pub directory: Option<OsString>,
    /// Whether this process's standard input is forwarded; otherwise it is empty.
    pub interactive: bool,
    /// Whether it gets a terminal.
    pub terminal: bool,
    /// Keys that detach from that terminal.
    pub detach_keys: DetachKeys,
}

/// A container of a pod that begins with a program, and ends with it.
#[derive(Clone, Debug)]
pub struct Begins<'a> {
    /// Its name in its node.
    pub name: &'a Name,
    /// Name of its root in the node's [`ROOTS`](insula_agent::pod::ROOTS).
    pub root: &'a str,
    /// Namespaces of its own.
    pub own: &'a OwnNamespaces,
}

/// Runs a program, forwarding input, output and signals, until it has ended.
///
/// # Errors
/// When it cannot be started, or its exit status is not known.
pub fn exec(driver: &Driver, request: &AgentExec<'_>) -> Result<ExitStatus, Error> {
    let failed = |source: FrameError| connection_failed(request.at, source);
    let stream = request.at.connect(driver)?;
    let connection = Connection::new(&stream).map_err(|error| failed(error.into()))?;
    let request_frame = request.for_agent();
    connection
        .send(&request_frame)
        .map_err(|error| failed(error.into()))?;
    forward_signals(&connection, request.terminal).map_err(no_terminal)?;
    let raw = match request.terminal && request.interactive {
        true => RawTerminal::enter().map_err(no_terminal)?,
        false => None,
    };
    if request.interactive {
        let typed = raw.is_some().then(|| Scanner::new(&request.detach_keys));
        start_input(&connection, typed);
    }
    let status = forward_output(&connection, Reader::new(stream), request.at);
    drop(raw);
    if connection.is_detached() {
        let what = format!("detached from the program in {}", request.at.kernel());
        return Err(Error::new(what).leaving("it gets SIGHUP"));
    }
    match status? {
        Some(status) => Ok(status),
        None => Err(disconnected(request.at)),
    }
}

impl AgentExec<'_> {
    fn for_agent(&self) -> Request {
        let exec = self.program();
        if let Some(begins) = &self.begins {
            return Request::Pod(PodContainer {
                name: begins.name.to_string(),
                root: begins.root.to_owned(),
                exec,
                user: self.user.map(str::to_owned),
                own: begins.own.clone(),
            });
        }
        match (self.container, self.user) {
            // Which agents of older images know.
            (None, None) => Request::Exec(exec),
            (container, user) => Request::ExecAs(ExecAs {
                exec,
                container: container.map(ToString::to_string),
                user: user.map(str::to_owned),
            }),
        }
    }

    fn program(&self) -> Exec {
        let bytes = |text: &OsString| text.clone().into_vec();
        let environment = self.environment.iter();
        Exec {
            words: self.words.iter().map(bytes).collect(),
            environment: environment
                .map(|(name, value)| (bytes(name), bytes(value)))
                .collect(),
            directory: self.directory.as_ref().map(bytes),
            stdin: self.interactive,
            terminal: self.terminal.then(|| Terminal {
                kind: env::var_os("TERM")
                    .unwrap_or_else(|| "dumb".into())
                    .into_vec(),
                size: terminal::size(),
            }),
        }
    }
}

/// The sending side of a connection, shared by threads.
#[derive(Clone)]
struct Connection {
    stream: Arc<Mutex<Socket>>,
    /// Bytes of standard input that may still be sent.
    window: Arc<(Mutex<usize>, Condvar)>,
    /// The same connection without the lock, to shut it down during a send.
    end: Arc<Socket>,
    detached: Arc<AtomicBool>,
    /// Number of messages received from the agent.
    received: Arc<AtomicUsize>,
}

impl Connection {
    fn new(stream: &Socket) -> io::Result<Self> {
        Ok(Self {
            stream: Arc::new(Mutex::new(stream.try_clone()?)),
            window: Arc::new((Mutex::new(STDIN_WINDOW), Condvar::new())),
            end: Arc::new(stream.try_clone()?),
            detached: Arc::default(),
            received: Arc::default(),
        })
    }

    /// Shuts the connection down, even during a send that a hanging node blocks.
    fn detach(&self) {
        self.detached.store(true, Ordering::Relaxed);
        // If the connection has failed already, the reader reports it.
        let _ = self.end.shutdown(Shutdown::Both);
    }

    fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Relaxed)
    }

    fn send(&self, frame: &impl serde::Serialize) -> io::Result<()> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        frame::write(&mut *stream, frame)
    }

    /// Waits until the window has room for `wanted` bytes, and takes it.
    fn take_window(&self, wanted: usize) {
        let (window, more) = &*self.window;
        let free = window.lock().unwrap_or_else(PoisonError::into_inner);
        let free = more.wait_while(free, |free| *free < wanted);
        *free.unwrap_or_else(PoisonError::into_inner) -= wanted;
    }

    /// Returns room to the window, which a node cannot grow beyond its initial size.
    fn give_window(&self, taken: u32) {
        let (window, more) = &*self.window;
        let mut free = window.lock().unwrap_or_else(PoisonError::into_inner);
        *free = STDIN_WINDOW.min(free.saturating_add(taken as usize));
        more.notify_one();
    }
}

/// Forwards signals. With a terminal, its keys cause signals in the node instead.
fn forward_signals(connection: &Connection, terminal: bool) -> io::Result<()> {
    let mut signals = Signals::new(FORWARDED)?;
    if terminal {
        signals.add_signal(SIGWINCH)?;
    }
    let connection = connection.clone();
    let mut counter = InterruptCounter::default();
    thread::spawn(move || {
        for signal in signals.forever() {
            let received = connection.received.load(Ordering::Relaxed);
            if signal == SIGINT && counter.count(received) {
                connection.detach();
            }
            let input = match signal {
                SIGWINCH => Input::Resize(terminal::size()),
                _ => Input::Signal(signal),
            };
            // If the connection has failed, the reader reports it.
            let _ = connection.send(&input);
        }
    });
    Ok(())
}

/// Interrupts without a message from the node after which the connection is given up.
const INTERRUPTS: u32 = 3;

/// Counts interrupts since the node's last message.
#[derive(Default)]
struct InterruptCounter {
    received: usize,
    interrupts: u32,
}

impl InterruptCounter {
    /// Counts an interrupt; whether the limit is reached.
    fn count(&mut self, received: usize) -> bool {
        if received != self.received {
            *self = Self {
                received,
                interrupts: 0,
            };
        }
        self.interrupts += 1;
        self.interrupts >= INTERRUPTS
    }
}

/// Starts forwarding standard input. Terminal input is scanned for the detach keys even while the
/// node takes nothing, so it is queued without limit.
fn start_input(connection: &Connection, typed: Option<Scanner>) {
    let sender = connection.clone();
    let Some(scanner) = typed else {
        thread::spawn(move || read_input(|bytes| forward_input(&sender, bytes)));
        return;
    };
    let (waiting, next) = mpsc::channel::<Vec<u8>>();
    thread::spawn(move || {
        let forwarded = next.iter().all(|bytes| forward_input(&sender, &bytes));
        if forwarded {
            forward_input(&sender, &[]);
        }
    });
    let connection = connection.clone();
    let mut scanner = scanner;
    thread::spawn(move || {
        read_input(|bytes| match scanner.filter(bytes) {
            Some(bytes) if bytes.is_empty() => true,
            Some(bytes) => waiting.send(bytes).is_ok(),
            None => {
                connection.detach();
                false
            }
        });
    });
}

/// Reads until the end, forwarded on as an empty piece, or until `take` returns false.
fn read_input(mut take: impl FnMut(&[u8]) -> bool) {
    let mut buffer = vec![0; BYTES_MAX];
    loop {
        let read = match io::stdin().lock().read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.unwrap_or(0),
        };
        if !take(&buffer[..read]) || read == 0 {
            return;
        }
    }
}

/// Sends a piece, or the end if it is empty; false on failure, which the reader reports.
fn forward_input(connection: &Connection, bytes: &[u8]) -> bool {
    if bytes.is_empty() {
        return connection.send(&Input::StdinEnd).is_ok();
    }
    bytes.chunks(BYTES_MAX).all(|bytes| {
        connection.take_window(bytes.len());
        connection.send(&Input::Stdin(bytes)).is_ok()
    })
}

/// Forwards output until the program's end; `None` if the agent closed the connection before.
fn forward_output(
    connection: &Connection,
    mut reader: Reader<Socket>,
    at: &Location,
) -> Result<Option<ExitStatus>, Error> {
    let (mut stdout, mut stderr) = (io::stdout().lock(), io::stderr().lock());
    loop {
        let read = reader.read();
        let read = read.map_err(|source| connection_failed(at, source))?;
        connection.received.fetch_add(1, Ordering::Relaxed);
        match read {
            Some(Output::Stdout(bytes)) => print(&mut stdout, bytes)?,
            Some(Output::Stderr(bytes)) => print(&mut stderr, bytes)?,
            Some(Output::Taken(bytes)) => connection.give_window(bytes),
            Some(Output::Ended(status)) => return Ok(Some(status)),
            Some(Output::Refused(reason)) => return Err(refused(at, reason)),
            None => return Ok(None),
        }
    }
}

fn print(to: &mut impl Write, bytes: &[u8]) -> Result<(), Error> {
    let printed = to.write_all(bytes).and_then(|()| to.flush());
    printed.map_err(|error| Error::of(Kind::Output, "writing the program's output").because(error))
}

/// The error for a program that the agent cannot start.
fn refused(at: &Location, reason: &str) -> Error {
    let reason = reason.escape_debug();
    let agent = at.agent();
    Error::new(format!("{agent} cannot start the program: {reason}"))
}

fn connection_failed(at: &Location, source: FrameError) -> Error {
    Error::new(format!("the connection to {} failed", at.kernel()))
        .because(source)
        .leaving("the program there gets SIGHUP")
}

/// The error for a node, or an agent, that has ended.
fn disconnected(at: &Location) -> Error {
    let kernel = at.kernel();
    let what = format!("{kernel} closed the connection before the program ended");
    Error::new(what).hint("`insula ps -a` shows its state")
}

/// The error of this process's terminal or signals.
fn no_terminal(source: io::Error) -> Error {
    Error::new("the terminal cannot be set up")
        .because(source)
        .leaving("the program in the node gets SIGHUP")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_interrupts_without_an_answer_give_up() {
        let mut counter = InterruptCounter::default();
        assert!(!counter.count(0));
        assert!(!counter.count(0));
        assert!(counter.count(0));
    }

    #[test]
    fn interrupts_with_answers_do_not_give_up() {
        let mut counter = InterruptCounter::default();
        for received in 0..10 {
            assert!(!counter.count(received));
            assert!(!counter.count(received));
        }
    }
}
