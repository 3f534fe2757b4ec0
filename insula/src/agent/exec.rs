//! Running a program in a Linux node.

use std::env;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread;

use insula_agent::frame::{self, BYTES_MAX, FrameError, Reader};
use insula_agent::{Ending, Exec, Input, Output, Request, STDIN_WINDOW, Terminal};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::Signals;
use vsock::VsockStream;

use super::connect::{ConnectError, to_agent};
use super::detach::{DetachKeys, Scanner};
use super::terminal::{self, RawTerminal};
use crate::driver::Driver;
use crate::name::Name;

/// Signals to this process that are meant for the program.
const PASSED_ON: [i32; 7] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCONT];

/// A program to be run.
#[derive(Clone, Debug)]
pub struct AgentExec<'a> {
    /// In which node.
    pub node: &'a Name,
    /// Its path in the node, or its name to be found in `PATH` there, then its arguments; none for a
    /// shell.
    pub words: &'a [OsString],
    /// What is set in its environment beyond the usual: names and values.
    pub environment: &'a [(OsString, OsString)],
    /// Where it begins, if not in `/`.
    pub directory: Option<OsString>,
    /// Whether it gets this process's standard input; else it is empty.
    pub interactive: bool,
    /// Whether it gets a terminal.
    pub terminal: bool,
    /// What its user types on that terminal to leave it.
    pub detach_keys: DetachKeys,
}

/// Why it is not known how a program ended.
#[derive(Debug, thiserror::Error)]
pub enum AgentExecError {
    /// The agent cannot be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The agent cannot begin it.
    #[error("the agent of node '{node}' cannot begin the program: {reason}")]
    Refused {
        /// Which.
        node: Name,
        /// Why.
        reason: String,
    },
    /// The connection has failed.
    #[error(
        "the connection to node '{node}' has failed: {source}; the program there is told so by SIGHUP"
    )]
    Connection {
        /// Which.
        node: Name,
        /// How.
        source: FrameError,
    },
    /// The node, or its agent, is gone.
    #[error(
        "the node '{0}' has left before the program has ended\n`insula ps -a` shows what became of it"
    )]
    Left(Name),
    /// Its user did not want to wait for its end.
    #[error("the program in node '{0}' was left; it is told so there by SIGHUP")]
    Detached(Name),
    /// What the program prints cannot be passed on.
    #[error(transparent)]
    Output(io::Error),
    /// This process's terminal, or its signals, cannot be had.
    #[error(
        "the terminal cannot be prepared: {0}; the program that was begun in the node gets SIGHUP"
    )]
    Terminal(io::Error),
}

/// Runs a program and passes on input, output and signals until it has ended.
///
/// # Errors
/// [`AgentExecError`].
pub fn exec(driver: &Driver, request: &AgentExec<'_>) -> Result<Ending, AgentExecError> {
    let failed = |source: FrameError| AgentExecError::Connection {
        node: request.node.clone(),
        source,
    };
    let stream = to_agent(driver, request.node)?;
    let connection = Connection::new(&stream).map_err(|error| failed(error.into()))?;
    let begin = Request::Exec(request.for_agent());
    connection
        .send(&begin)
        .map_err(|error| failed(error.into()))?;
    pass_on_signals(&connection, request.terminal).map_err(AgentExecError::Terminal)?;
    let raw = match request.terminal && request.interactive {
        true => RawTerminal::enter().map_err(AgentExecError::Terminal)?,
        false => None,
    };
    if request.interactive {
        let typed = raw.is_some().then(|| Scanner::new(&request.detach_keys));
        begin_input(&connection, typed);
    }
    let ending = pass_on_output(&connection, Reader::new(stream), request.node);
    drop(raw);
    if connection.was_left() {
        return Err(AgentExecError::Detached(request.node.clone()));
    }
    match ending? {
        Some(ending) => Ok(ending),
        None => Err(AgentExecError::Left(request.node.clone())),
    }
}

impl AgentExec<'_> {
    fn for_agent(&self) -> Exec {
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

/// Whoever has something to say to the agent.
#[derive(Clone)]
struct Connection {
    stream: Arc<Mutex<VsockStream>>,
    /// Bytes of standard input that the program may still be sent.
    window: Arc<(Mutex<usize>, Condvar)>,
    /// The same connection, to be ended while somebody is in the middle of sending.
    end: Arc<VsockStream>,
    left: Arc<AtomicBool>,
    /// How often the agent has told something.
    heard: Arc<AtomicUsize>,
}

impl Connection {
    fn new(stream: &VsockStream) -> io::Result<Self> {
        Ok(Self {
            stream: Arc::new(Mutex::new(stream.try_clone()?)),
            window: Arc::new((Mutex::new(STDIN_WINDOW), Condvar::new())),
            end: Arc::new(stream.try_clone()?),
            left: Arc::default(),
            heard: Arc::default(),
        })
    }

    /// Ends it, whatever is under way: a node that hangs takes and tells nothing any more.
    fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
        // If it has failed already, who reads from it knows.
        let _ = self.end.shutdown(Shutdown::Both);
    }

    fn was_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    fn send(&self, frame: &impl serde::Serialize) -> io::Result<()> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        frame::write(&mut *stream, frame)
    }

    /// Waits until the program may be sent some bytes, and counts them as sent.
    fn take_window(&self, wanted: usize) {
        let (window, more) = &*self.window;
        let free = window.lock().unwrap_or_else(PoisonError::into_inner);
        let free = more.wait_while(free, |free| *free < wanted);
        *free.unwrap_or_else(PoisonError::into_inner) -= wanted;
    }

    /// What a node says of more than it was sent is not believed.
    fn give_window(&self, taken: u32) {
        let (window, more) = &*self.window;
        let mut free = window.lock().unwrap_or_else(PoisonError::into_inner);
        *free = STDIN_WINDOW.min(free.saturating_add(taken as usize));
        more.notify_one();
    }
}

/// With a terminal, its keys are signals there and not here.
fn pass_on_signals(connection: &Connection, terminal: bool) -> io::Result<()> {
    let mut signals = Signals::new(PASSED_ON)?;
    if terminal {
        signals.add_signal(SIGWINCH)?;
    }
    let connection = connection.clone();
    let mut patience = Patience::default();
    thread::spawn(move || {
        for signal in signals.forever() {
            let heard = connection.heard.load(Ordering::Relaxed);
            if signal == SIGINT && patience.is_over(heard) {
                connection.leave();
            }
            let input = match signal {
                SIGWINCH => Input::Resize(terminal::size()),
                _ => Input::Signal(signal),
            };
            // If the connection has failed, who reads from it tells.
            let _ = connection.send(&input);
        }
    });
    Ok(())
}

/// Whoever interrupts so often, and hears nothing, does not want to wait any longer.
const INTERRUPTS: u32 = 3;

/// How often the user has interrupted since the node was last heard of.
#[derive(Default)]
struct Patience {
    heard: usize,
    interrupts: u32,
}

impl Patience {
    /// Counts an interrupt; whether that was the last.
    fn is_over(&mut self, heard: usize) -> bool {
        if heard != self.heard {
            *self = Self {
                heard,
                interrupts: 0,
            };
        }
        self.interrupts += 1;
        self.interrupts >= INTERRUPTS
    }
}

/// Passes on the standard input from now on. What is typed on a terminal is looked through, also
/// while the node takes nothing: so it may wait here, as much as somebody types.
fn begin_input(connection: &Connection, typed: Option<Scanner>) {
    let sender = connection.clone();
    let Some(scanner) = typed else {
        thread::spawn(move || read_input(|bytes| pass_on_input(&sender, bytes)));
        return;
    };
    let (waiting, next) = mpsc::channel::<Vec<u8>>();
    thread::spawn(move || {
        let passed = next.iter().all(|bytes| pass_on_input(&sender, &bytes));
        if passed {
            pass_on_input(&sender, &[]);
        }
    });
    let connection = connection.clone();
    let mut scanner = scanner;
    thread::spawn(move || {
        read_input(|bytes| match scanner.pass(bytes) {
            Some(bytes) if bytes.is_empty() => true,
            Some(bytes) => waiting.send(bytes).is_ok(),
            None => {
                connection.leave();
                false
            }
        });
    });
}

/// Reads until the end, which is an empty piece, or until nobody takes it any more.
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

/// Sends a piece, or the end if it is empty; whether that was possible. That the connection has ended
/// is told by who reads from it.
fn pass_on_input(connection: &Connection, bytes: &[u8]) -> bool {
    if bytes.is_empty() {
        return connection.send(&Input::StdinEnd).is_ok();
    }
    bytes.chunks(BYTES_MAX).all(|bytes| {
        connection.take_window(bytes.len());
        connection.send(&Input::Stdin(bytes)).is_ok()
    })
}

/// How the program ended; `None` if the agent has gone without telling.
fn pass_on_output(
    connection: &Connection,
    mut reader: Reader<VsockStream>,
    node: &Name,
) -> Result<Option<Ending>, AgentExecError> {
    let (mut stdout, mut stderr) = (io::stdout().lock(), io::stderr().lock());
    loop {
        let read = reader.read().map_err(|source| AgentExecError::Connection {
            node: node.clone(),
            source,
        })?;
        connection.heard.fetch_add(1, Ordering::Relaxed);
        match read {
            Some(Output::Stdout(bytes)) => print(&mut stdout, bytes)?,
            Some(Output::Stderr(bytes)) => print(&mut stderr, bytes)?,
            Some(Output::Taken(bytes)) => connection.give_window(bytes),
            Some(Output::Ended(ending)) => return Ok(Some(ending)),
            Some(Output::Refused(reason)) => {
                return Err(AgentExecError::Refused {
                    node: node.clone(),
                    reason: reason.escape_debug().to_string(),
                });
            }
            None => return Ok(None),
        }
    }
}

fn print(to: &mut impl Write, bytes: &[u8]) -> Result<(), AgentExecError> {
    to.write_all(bytes)
        .and_then(|()| to.flush())
        .map_err(AgentExecError::Output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_hears_nothing_may_leave() {
        let mut patience = Patience::default();
        assert!(!patience.is_over(0));
        assert!(!patience.is_over(0));
        assert!(patience.is_over(0));
    }

    #[test]
    fn a_program_that_answers_is_not_left() {
        let mut patience = Patience::default();
        for heard in 0..10 {
            assert!(!patience.is_over(heard));
            assert!(!patience.is_over(heard));
        }
    }
}
