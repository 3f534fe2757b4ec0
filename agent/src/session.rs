//! Running a program for the command.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use insula_agent::frame::{self, BYTES_MAX, FrameError, Reader};
use insula_agent::{ExitStatus, Input, Output, STDIN_WINDOW};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};
use socket2::Socket;

use crate::log::LogLines;
use crate::program::{Program, Signalled, resize};
use crate::signal::by_number;

/// The end of input on a terminal.
const END_OF_TRANSMISSION: &[u8] = &[4];

/// The connection, shared by writers.
pub(crate) type Sink = Arc<Mutex<Socket>>;

/// Runs a program until it exits. It gets a signal when the command has left.
pub(crate) fn run(
    start: impl FnOnce() -> io::Result<Program>,
    stream: Socket,
    reader: Reader<Socket>,
) -> Result<(), FrameError> {
    let sink = Arc::new(Mutex::new(stream.try_clone()?));
    let mut program = match start() {
        Ok(program) => program,
        Err(error) => return Ok(send(&sink, &Output::Refused(&error.to_string()))?),
    };
    // Says that it is started. The command may have left.
    let _ = send(&sink, &Output::Taken(0));
    let pid = Pid::from_child(&program.child);
    let end = Arc::new(pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from)?);
    let forwarders = [
        (program.stdout.take(), false),
        (program.stderr.take(), true),
    ];
    let forwarders = forwarders.map(|(from, is_stderr)| {
        let (sink, end) = (Arc::clone(&sink), Arc::clone(&end));
        let to = move |bytes: &[u8]| match is_stderr {
            true => send(&sink, &Output::Stderr(bytes)),
            false => send(&sink, &Output::Stdout(bytes)),
        };
        from.map(|from| thread::spawn(move || forward_output(from, &end, to)))
    });
    let target = Arc::new(Target::new(pid));
    let listener = Listener {
        target: Arc::clone(&target),
        signalled: program.signalled,
        is_terminal: program.terminal.is_some(),
        terminal: program.terminal.take(),
        stdin: Stdin::new(program.stdin.take().map(SharedInput::new), &sink),
    };
    let (left, hangup) = (Arc::clone(&target), program.hangup);
    thread::spawn(move || {
        listener.listen(reader);
        left.signal(hangup, Signalled::Group);
    });
    poll(&mut [PollFd::new(&end, PollFlags::IN)], None).map_err(io::Error::from)?;
    target.mark_exited();
    let status = program.child.wait()?;
    for forward_output in forwarders.into_iter().flatten() {
        // An error means that the command has closed the connection.
        let _ = forward_output.join();
    }
    // Fails for the same reason.
    let _ = send(&sink, &Output::Ended(exit_status(status)));
    let _ = stream.shutdown(Shutdown::Both);
    Ok(())
}

/// Runs a program until it exits, its output in the log. The command is told that it is started, and not waited for.
pub(crate) fn run_detached(
    name: &str,
    start: impl FnOnce() -> io::Result<Program>,
    stream: Socket,
) -> Result<(), FrameError> {
    let started = start();
    let answer = started.as_ref().map(drop).map_err(ToString::to_string);
    // It may have left.
    let _ = frame::write(&stream, &answer);
    drop(stream);
    let Ok(mut program) = started else {
        return Ok(());
    };
    let pid = Pid::from_child(&program.child);
    let end = Arc::new(pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from)?);
    let outputs = [program.stdout.take(), program.stderr.take()];
    let forwarders = outputs.into_iter().flatten().map(|from| {
        let (end, mut lines) = (Arc::clone(&end), LogLines::new(name));
        let to = move |bytes: &[u8]| {
            lines.add(bytes);
            Ok(())
        };
        thread::spawn(move || forward_output(from, &end, to))
    });
    let forwarders: Vec<_> = forwarders.collect();
    program.child.wait()?;
    for forwarder in forwarders {
        // One that panicked has ended as well.
        let _ = forwarder.join();
    }
    Ok(())
}

fn exit_status(status: process::ExitStatus) -> ExitStatus {
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitStatus::Exited(code as u8),
        (None, signal) => ExitStatus::Killed(signal.unwrap_or_default() as u8),
    }
}

/// Sends a message to the command.
pub(crate) fn send(sink: &Sink, output: &Output<'_>) -> io::Result<()> {
    let mut stream = sink.lock().unwrap_or_else(PoisonError::into_inner);
    frame::write(&mut *stream, output)
}

/// Forwards a program's output until all writers have closed it, or the program has exited and no
/// output is left: background children may keep it open.
pub(crate) fn forward_output(
    mut from: File,
    end: &OwnedFd,
    mut to: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = vec![0; BYTES_MAX];
    loop {
        // The kernel looks at them in this order: what was written before the end is seen with it.
        let mut wanted = [
            PollFd::new(end, PollFlags::IN),
            PollFd::new(&from, PollFlags::IN),
        ];
        poll(&mut wanted, None)?;
        if wanted[1].revents().is_empty() {
            return Ok(());
        }
        // Fails for a terminal that no process has open.
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        to(&buffer[..count])?;
    }
}

/// The process to signal, until its id may be reused.
pub(crate) struct Target {
    pid: Pid,
    alive: Mutex<bool>,
}

impl Target {
    /// That of a process that is alive.
    pub(crate) fn new(pid: Pid) -> Self {
        Self {
            pid,
            alive: Mutex::new(true),
        }
    }

    /// Signals the program, or its process group if it has created that already.
    fn signal(&self, signal: Signal, to: Signalled) {
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        if !*alive {
            return;
        }
        if to == Signalled::Program || kill_process_group(self.pid, signal).is_err() {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Marks it as exited; remaining children are not signalled.
    pub(crate) fn mark_exited(&self) {
        *self.alive.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

/// Handles the command's messages for a program.
pub(crate) struct Listener {
    pub(crate) target: Arc<Target>,
    pub(crate) signalled: Signalled,
    pub(crate) is_terminal: bool,
    pub(crate) terminal: Option<File>,
    pub(crate) stdin: Stdin,
}

impl Listener {
    /// Handles messages until the connection ends.
    pub(crate) fn listen(mut self, mut reader: Reader<Socket>) {
        while let Ok(Some(input)) = reader.read() {
            if !self.handle(&input) {
                return;
            }
        }
    }

    /// Handles a message; false if the command breaks the protocol.
    fn handle(&mut self, input: &Input<'_>) -> bool {
        match *input {
            Input::Stdin(bytes) => return self.stdin.push(bytes),
            Input::StdinEnd if self.is_terminal => return self.stdin.push(END_OF_TRANSMISSION),
            Input::StdinEnd => self.stdin.end(),
            Input::Signal(number) => {
                if let Some(signal) = by_number(number) {
                    self.target.signal(signal, self.signalled);
                }
            }
            Input::Resize(size) => {
                // Fails if the program has just exited.
                let _ = self
                    .terminal
                    .as_ref()
                    .map(|terminal| resize(terminal, size));
            }
        }
        true
    }
}

/// Standard input of a program, which several commands may write to until one ends it.
#[derive(Clone)]
pub(crate) struct SharedInput(Arc<Mutex<Option<File>>>);

impl SharedInput {
    /// Input that goes to this file.
    pub(crate) fn new(file: File) -> Self {
        Self(Arc::new(Mutex::new(Some(file))))
    }

    /// Writes bytes; those that the program no longer reads are dropped.
    fn write(&self, bytes: &[u8]) {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if file
            .as_mut()
            .is_some_and(|file| file.write_all(bytes).is_err())
        {
            *file = None;
        }
    }

    fn end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Queue of standard input for a program that may be slow to read.
pub(crate) struct Stdin {
    queue: Option<Sender<Piece>>,
    waiting: Arc<AtomicUsize>,
}

/// A piece of standard input.
enum Piece {
    Bytes(Vec<u8>),
    End,
}

impl Stdin {
    /// A queue of a command; without a target all that it sends is dropped.
    pub(crate) fn new(to: Option<SharedInput>, sink: &Sink) -> Self {
        let waiting = Arc::new(AtomicUsize::new(0));
        let queue = to.map(|to| {
            let (queue, pieces) = channel();
            let (sink, waiting) = (Arc::clone(sink), Arc::clone(&waiting));
            thread::spawn(move || write_stdin(to, &pieces, &waiting, &sink));
            queue
        });
        Self { queue, waiting }
    }

    /// Queues bytes; false if the command exceeds the window.
    fn push(&mut self, bytes: &[u8]) -> bool {
        let before = self.waiting.fetch_add(bytes.len(), Ordering::Relaxed);
        if let Some(queue) = &self.queue {
            // The receiver lives until the queue is dropped.
            let _ = queue.send(Piece::Bytes(bytes.to_vec()));
        }
        before + bytes.len() <= STDIN_WINDOW
    }

    fn end(&mut self) {
        if let Some(queue) = self.queue.take() {
            let _ = queue.send(Piece::End);
        }
    }
}

/// Writes input to a program and reports progress to the command.
fn write_stdin(to: SharedInput, pieces: &Receiver<Piece>, waiting: &AtomicUsize, sink: &Sink) {
    for piece in pieces {
        let Piece::Bytes(chunk) = piece else {
            return to.end();
        };
        to.write(&chunk);
        waiting.fetch_sub(chunk.len(), Ordering::Relaxed);
        if send(sink, &Output::Taken(chunk.len() as u32)).is_err() {
            return;
        }
    }
}
