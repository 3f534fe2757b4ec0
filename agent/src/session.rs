//! A program run for the command.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use insula_agent::frame::{self, BYTES_MAX, FrameError, Reader};
use insula_agent::{Ending, Exec, Input, Output, STDIN_WINDOW};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};
use vsock::VsockStream;

use crate::program::{Program, resize};

/// What is sent on a terminal for the end of input.
const END_OF_TRANSMISSION: &[u8] = &[4];

/// Who may print a frame.
type Sink = Arc<Mutex<VsockStream>>;

/// Runs a program until it ends, or the command is gone.
pub(crate) fn run(
    exec: &Exec,
    stream: VsockStream,
    reader: Reader<VsockStream>,
) -> Result<(), FrameError> {
    let sink = Arc::new(Mutex::new(stream.try_clone()?));
    let mut program = match Program::start(exec) {
        Ok(program) => program,
        Err(error) => return Ok(send(&sink, &Output::Refused(&error.to_string()))?),
    };
    let pid = Pid::from_child(&program.child);
    let end = Arc::new(pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from)?);
    let pumps = [
        (program.stdout.take(), false),
        (program.stderr.take(), true),
    ];
    let pumps = pumps.map(|(from, is_stderr)| {
        let (sink, end) = (Arc::clone(&sink), Arc::clone(&end));
        from.map(|from| thread::spawn(move || pump(from, &end, &sink, is_stderr)))
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
    };
    thread::spawn(move || listener.listen(reader));
    poll(&mut [PollFd::new(&end, PollFlags::IN)], None).map_err(io::Error::from)?;
    target.forget();
    let status = program.child.wait()?;
    for pump in pumps.into_iter().flatten() {
        // Whoever does not listen any more has ended the connection.
        let _ = pump.join();
    }
    // Nor does it hear this.
    let _ = send(&sink, &Output::Ended(ending(status)));
    let _ = stream.shutdown(Shutdown::Both);
    Ok(())
}

fn ending(status: ExitStatus) -> Ending {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ending::Exited(code as u8),
        (None, signal) => Ending::Killed(signal.unwrap_or_default() as u8),
    }
}

fn send(sink: &Sink, output: &Output<'_>) -> io::Result<()> {
    let mut stream = sink.lock().unwrap_or_else(PoisonError::into_inner);
    frame::write(&mut *stream, output)
}

/// Passes on what a program prints, until all who could print have gone, or it has ended and there
/// is no more: its children may keep its output for themselves.
fn pump(mut from: File, end: &OwnedFd, sink: &Sink, is_stderr: bool) -> io::Result<()> {
    let mut buffer = vec![0; BYTES_MAX];
    loop {
        let mut wanted = [
            PollFd::new(&from, PollFlags::IN),
            PollFd::new(end, PollFlags::IN),
        ];
        poll(&mut wanted, None)?;
        if wanted[0].revents().is_empty() {
            return Ok(());
        }
        // Of a terminal that nobody has open any more, reading fails.
        let count = from.read(&mut buffer)?;
        let bytes = &buffer[..count];
        match (count, is_stderr) {
            (0, _) => return Ok(()),
            (_, true) => send(sink, &Output::Stderr(bytes))?,
            (_, false) => send(sink, &Output::Stdout(bytes))?,
        }
    }
}

/// Who is signalled, as long as its id is its own.
struct Target {
    pid: Pid,
    alive: Mutex<bool>,
}

impl Target {
    /// Signals the program's group, or the program that has not made it yet.
    fn signal(&self, signal: Signal) {
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        if *alive && kill_process_group(self.pid, signal).is_err() {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// It has ended; its children, if there are any, are left in peace.
    fn forget(&self) {
        *self.alive.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

/// Hears what the command has to say to the program.
struct Listener {
    target: Arc<Target>,
    is_terminal: bool,
    terminal: Option<File>,
    stdin: Stdin,
}

impl Listener {
    /// Until the command is gone, in order or not: then the program is told that it is left alone.
    fn listen(mut self, mut reader: Reader<VsockStream>) {
        while let Ok(Some(input)) = reader.read() {
            if !self.take(&input) {
                break;
            }
        }
        self.target.signal(Signal::HUP);
    }

    /// False if it is not to be listened to any more.
    fn take(&mut self, input: &Input<'_>) -> bool {
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
                // A program that has just ended needs no other size.
                let _ = self
                    .terminal
                    .as_ref()
                    .map(|terminal| resize(terminal, size));
            }
        }
        true
    }
}

/// Standard input on its way to a program, which may be slow to take it.
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
            thread::spawn(move || feed(to, &chunks, &waiting, &sink));
            queue
        });
        Self { queue, waiting }
    }

    /// Takes more; false if that is more than was agreed.
    fn push(&mut self, bytes: &[u8]) -> bool {
        let before = self.waiting.fetch_add(bytes.len(), Ordering::Relaxed);
        if let Some(queue) = &self.queue {
            // Who feeds does not end before this is gone.
            let _ = queue.send(bytes.to_vec());
        }
        before + bytes.len() <= STDIN_WINDOW
    }

    fn end(&mut self) {
        self.queue = None;
    }
}

/// Feeds a program, and tells the command how much it has taken. What a program does not want any
/// more is thrown away.
fn feed(to: File, chunks: &Receiver<Vec<u8>>, waiting: &AtomicUsize, sink: &Sink) {
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
