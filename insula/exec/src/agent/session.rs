//! Being connected to a program in a node: its input, its output and its signals are this process's.

use std::fs::File;
use std::io::{self, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use insula_agent::frame::{self, FrameError, Reader};
use insula_agent::{ExitStatus, Input, Output, Request, STDIN_WINDOW};
use insula_base::error::{Error, Kind};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::Signals;
use socket2::Socket;

use super::detach::{DetachKeys, Scanner};
use super::input;
use super::location::Location;
use super::terminal::{self, RawTerminal};

/// Signals to this process that are forwarded to the program.
const FORWARDED: [i32; 7] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCONT];

/// How this process is connected to a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session<'a> {
    /// Where it runs.
    pub(super) at: &'a Location,
    /// Whether this process's standard input is forwarded; otherwise it is empty.
    pub(super) interactive: bool,
    /// Whether the program has a terminal.
    pub(super) terminal: bool,
    /// Keys that detach from that terminal.
    pub(super) detach_keys: &'a DetachKeys,
    /// Whether signals to this process are forwarded.
    pub(super) forwards_signals: bool,
    /// Where a byte is written when the agent has answered.
    pub(super) started: Option<&'a File>,
    /// What an agent that refuses the request cannot do.
    pub(super) refusal: &'static str,
    /// What becomes of the program when the connection is lost.
    pub(super) left_alone: &'static str,
}

/// How a session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionEnd {
    /// With the program.
    Ended(ExitStatus),
    /// By its user.
    Detached,
    /// By the agent, or with the node.
    Disconnected,
}

impl Session<'_> {
    /// Makes a request, and forwards input, output and signals until the program has ended.
    ///
    /// # Errors
    /// When the agent refuses it, or the connection fails.
    pub(super) fn run(&self, stream: Socket, request: &Request) -> Result<SessionEnd, Error> {
        let failed = |error: io::Error| self.connection_failed(error.into());
        let connection = Connection::new(&stream).map_err(failed)?;
        connection.send(request).map_err(failed)?;
        self.forward_signals(&connection)
            .map_err(|error| self.no_terminal(error))?;
        let raw = match self.terminal && self.interactive {
            true => RawTerminal::enter().map_err(|error| self.no_terminal(error))?,
            false => None,
        };
        if self.terminal {
            let size = Input::Resize(terminal::size());
            connection.send(&size).map_err(failed)?;
        }
        if self.interactive {
            let typed = raw.is_some().then(|| Scanner::new(self.detach_keys));
            input::start(&connection, typed);
        }
        let status = self.forward_output(&connection, Reader::new(stream));
        drop(raw);
        if connection.is_detached() {
            return Ok(SessionEnd::Detached);
        }
        Ok(status?.map_or(SessionEnd::Disconnected, SessionEnd::Ended))
    }

    /// Forwards signals. With a terminal, its keys cause signals in the node instead.
    fn forward_signals(&self, connection: &Connection) -> io::Result<()> {
        let forwarded: &[i32] = if self.forwards_signals {
            &FORWARDED
        } else {
            &[]
        };
        let resized: &[i32] = if self.terminal { &[SIGWINCH] } else { &[] };
        let mut signals = Signals::new([forwarded, resized].concat())?;
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

    /// Forwards output until the program's end; `None` if the agent closed the connection before.
    fn forward_output(
        &self,
        connection: &Connection,
        mut reader: Reader<Socket>,
    ) -> Result<Option<ExitStatus>, Error> {
        let (mut stdout, mut stderr) = (io::stdout().lock(), io::stderr().lock());
        loop {
            let read = reader.read();
            let read = read.map_err(|source| self.connection_failed(source))?;
            if connection.received.fetch_add(1, Ordering::Relaxed) == 0 {
                self.tell_started();
            }
            match read {
                Some(Output::Stdout(bytes)) => print(&mut stdout, bytes)?,
                Some(Output::Stderr(bytes)) => print(&mut stderr, bytes)?,
                Some(Output::Taken(bytes)) => connection.give_window(bytes),
                Some(Output::Ended(status)) => return Ok(Some(status)),
                Some(Output::Refused(reason)) => return Err(self.refused(reason)),
                None => return Ok(None),
            }
        }
    }

    fn tell_started(&self) {
        if let Some(mut started) = self.started {
            // Who waits for it may have left.
            let _ = started.write_all(&[1]);
        }
    }

    /// The error of what the agent cannot do.
    fn refused(&self, reason: &str) -> Error {
        let (agent, reason) = (self.at.agent(), reason.escape_debug());
        Error::new(format!("{agent} {}: {reason}", self.refusal))
    }

    fn connection_failed(&self, source: FrameError) -> Error {
        Error::new(format!("the connection to {} failed", self.at.kernel()))
            .because(source)
            .leaving(self.left_alone)
    }

    /// The error of this process's terminal or signals.
    fn no_terminal(&self, source: io::Error) -> Error {
        Error::new("the terminal cannot be set up")
            .because(source)
            .leaving(self.left_alone)
    }
}

/// The sending side of a connection, shared by threads.
#[derive(Clone)]
pub(super) struct Connection {
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
    pub(super) fn detach(&self) {
        self.detached.store(true, Ordering::Relaxed);
        // If the connection has failed already, the reader reports it.
        let _ = self.end.shutdown(Shutdown::Both);
    }

    fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Relaxed)
    }

    pub(super) fn send(&self, frame: &impl serde::Serialize) -> io::Result<()> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        frame::write(&mut *stream, frame)
    }

    /// Waits until the window has room for `wanted` bytes, and takes it.
    pub(super) fn take_window(&self, wanted: usize) {
        let (window, more) = &*self.window;
        let free = window.lock().unwrap_or_else(PoisonError::into_inner);
        let free = more.wait_while(free, |free| *free < wanted);
        *free.unwrap_or_else(PoisonError::into_inner) -= wanted;
    }

    /// Waits until the program has taken all that was sent.
    pub(super) fn wait_until_taken(&self) {
        let (window, more) = &*self.window;
        let free = window.lock().unwrap_or_else(PoisonError::into_inner);
        let _taken = more.wait_while(free, |free| *free < STDIN_WINDOW);
    }

    /// Returns room to the window, which a node cannot grow beyond its initial size.
    fn give_window(&self, taken: u32) {
        let (window, more) = &*self.window;
        let mut free = window.lock().unwrap_or_else(PoisonError::into_inner);
        *free = STDIN_WINDOW.min(free.saturating_add(taken as usize));
        more.notify_all();
    }
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

fn print(to: &mut impl Write, bytes: &[u8]) -> Result<(), Error> {
    let printed = to.write_all(bytes).and_then(|()| to.flush());
    printed.map_err(|error| Error::of(Kind::Output, "writing the program's output").because(error))
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
