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

use crate::program::{Program, resize};

/// The end of input on a terminal.
const END_OF_TRANSMISSION: &[u8] = &[4];

/// The connection, shared by writers.
type Sink = Arc<Mutex<Socket>>;

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
    let pid = Pid::from_child(&program.child);
    let end = Arc::new(pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from)?);
    let forwarders = [
        (program.stdout.take(), false),
        (program.stderr.take(), true),
    ];
    let forwarders = forwarders.map(|(from, is_stderr)| {
        let (sink, end) = (Arc::clone(&sink), Arc::clone(&end));
        from.map(|from| thread::spawn(move || forward_output(from, &end, &sink, is_stderr)))
    });
    let target = Arc::new(Target {
        pid,
        alive: Mutex::new(true),
    });
    let listener = Listener {
        target: Arc::clone(&target),
        is_terminal: program.terminal.is_some(),
        terminal: program.terminal.take(),
        stdin: Stdin::new(program.stdin.take(), &sink),
        hangup: program.hangup,
    };
    thread::spawn(move || listener.listen(reader));
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

fn exit_status(status: process::ExitStatus) -> ExitStatus {
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitStatus::Exited(code as u8),
        (None, signal) => ExitStatus::Killed(signal.unwrap_or_default() as u8),
    }
}

fn send(sink: &Sink, output: &Output<'_>) -> io::Result<()> {
    let mut stream = sink.lock().unwrap_or_else(PoisonError::into_inner);
    frame::write(&mut *stream, output)
}

/// Forwards a program's output until all writers have closed it, or the program has exited and no
/// output is left: background children may keep it open.
fn forward_output(mut from: File, end: &OwnedFd, sink: &Sink, is_stderr: bool) -> io::Result<()> {
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
        let bytes = &buffer[..count];
        match (count, is_stderr) {
            (0, _) => return Ok(()),
            (_, true) => send(sink, &Output::Stderr(bytes))?,
            (_, false) => send(sink, &Output::Stdout(bytes))?,
        }
    }
}

/// The process to signal, until its id may be reused.
struct Target {
    pid: Pid,
    alive: Mutex<bool>,
}

impl Target {
    /// Signals the program's process group, or the program if it has not created that yet.
    fn signal(&self, signal: Signal) {
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        if *alive && kill_process_group(self.pid, signal).is_err() {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Marks it as exited; remaining children are not signalled.
    fn mark_exited(&self) {
        *self.alive.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

/// Handles the command's messages for a program.
struct Listener {
    target: Arc<Target>,
    is_terminal: bool,
    terminal: Option<File>,
    stdin: Stdin,
    hangup: Signal,
}

impl Listener {
    /// Handles messages until the connection ends, then signals that to the program.
    fn listen(mut self, mut reader: Reader<Socket>) {
        while let Ok(Some(input)) = reader.read() {
            if !self.handle(&input) {
                break;
            }
        }
        self.target.signal(self.hangup);
    }

    /// Handles a message; false if the command breaks the protocol.
    fn handle(&mut self, input: &Input<'_>) -> bool {
        match *input {
            Input::Stdin(bytes) => return self.stdin.push(bytes),
            Input::StdinEnd if self.is_terminal => return self.stdin.push(END_OF_TRANSMISSION),
            Input::StdinEnd => self.stdin.end(),
            Input::Signal(number) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    self.target.signal(signal);
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

/// Queue of standard input for a program that may be slow to read.
struct Stdin {
    queue: Option<Sender<Vec<u8>>>,
    waiting: Arc<AtomicUsize>,
}

impl Stdin {
    fn new(to: Option<File>, sink: &Sink) -> Self {
        let waiting = Arc::new(AtomicUsize::new(0));
        let queue = to.map(|to| {
            let (queue, chunks) = channel();
            let (sink, waiting) = (Arc::clone(sink), Arc::clone(&waiting));
            thread::spawn(move || write_stdin(to, &chunks, &waiting, &sink));
            queue
        });
        Self { queue, waiting }
    }

    /// Queues bytes; false if the command exceeds the window.
    fn push(&mut self, bytes: &[u8]) -> bool {
        let before = self.waiting.fetch_add(bytes.len(), Ordering::Relaxed);
        if let Some(queue) = &self.queue {
            // The receiver lives until the queue is dropped.
            let _ = queue.send(bytes.to_vec());
        }
        before + bytes.len() <= STDIN_WINDOW
    }

    fn end(&mut self) {
        self.queue = None;
    }
}

/// Writes input to a program and reports progress to the command. Input that the program no longer
/// reads is dropped.
fn write_stdin(to: File, chunks: &Receiver<Vec<u8>>, waiting: &AtomicUsize, sink: &Sink) {
    let mut to = Some(to);
    for chunk in chunks {
        if to.as_mut().is_some_and(|to| to.write_all(&chunk).is_err()) {
            to = None;
        }
        waiting.fetch_sub(chunk.len(), Ordering::Relaxed);
        if send(sink, &Output::Taken(chunk.len() as u32)).is_err() {
            return;
        }
    }
}
