//! Servers and clients in processes of their own.

use std::mem::{size_of_val, zeroed};
use std::time::{Duration, Instant};

use insula_server::{Call, Client, Endpoint, Error, Handler, Reply, Request, Words};
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::lwk::messages::wrong;
use crate::lwk::{Named, ProbeError};

/// What the server of these tests can do.
pub(super) mod operation {
    /// Adds 1 to each word; copies what may be read to what may be written, inverted.
    pub(crate) const INVERT: u32 = 1;
    /// The same, by calls for each part of it.
    pub(crate) const INVERT_IN_PARTS: u32 = 2;
    /// Sleeps for word 0 in ms, then replies.
    pub(crate) const SLEEP: u32 = 3;
    /// Reads and writes at offset word 0, a length of word 1; replies with the numbers of bytes.
    pub(crate) const REACH: u32 = 4;
    /// Replies with how many requests came before.
    pub(crate) const COUNT: u32 = 5;
}

/// A process, killed and waited for when it is dropped.
pub(super) struct Process(pub(super) Pid);

impl Process {
    /// Forks one that does something, then exits.
    pub(super) fn start(
        action: impl FnOnce() -> Result<(), ProbeError>,
    ) -> Result<Self, ProbeError> {
        // SAFETY: this program has one thread.
        match unsafe { fork() }.named("fork")? {
            ForkResult::Child => {
                let status = match action() {
                    Ok(()) => 0,
                    Err(error) => {
                        eprintln!("{error}");
                        1
                    }
                };
                // SAFETY: it ends the process, without the parent's exit handlers.
                unsafe { libc::_exit(status) }
            }
            ForkResult::Parent { child } => Ok(Self(child)),
        }
    }

    /// Starts a server, on a core if one is given, and waits until it is there.
    pub(super) fn server(name: &str, core: Option<usize>) -> Result<Self, ProbeError> {
        let own = name.to_owned();
        let server = Self::start(move || {
            core.map_or(Ok(()), stay_on)?;
            let endpoint = Endpoint::create(&own).map_err(failed)?;
            let error = endpoint.serve(&mut Server::default(), None);
            wrong(format!("the server ended: {error}"))
        })?;
        open(name)?;
        Ok(server)
    }

    pub(super) fn kill(&self) -> Result<(), ProbeError> {
        kill(self.0, Signal::SIGKILL).named("kill")
    }

    /// Waits for its end, which must be one without an error.
    pub(super) fn succeeds(self) -> Result<(), ProbeError> {
        let status = waitpid(self.0, None).named("waiting for a child")?;
        std::mem::forget(self);
        match status {
            WaitStatus::Exited(_, 0) => Ok(()),
            status => wrong(format!("a process ended so: {status:?}")),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
        let _ = waitpid(self.0, None);
    }
}

pub(super) fn failed(error: Error) -> ProbeError {
    ProbeError::Wrong(error.to_string())
}

/// Opens an endpoint that is about to be created.
pub(super) fn open(name: &str) -> Result<Client, ProbeError> {
    until("the server", || match Client::open(name) {
        Err(Error::NoServer) => Ok(None),
        result => result.map(Some).map_err(failed),
    })
}

/// Waits for a condition.
pub(super) fn until<T>(
    what: &str,
    mut condition: impl FnMut() -> Result<Option<T>, ProbeError>,
) -> Result<T, ProbeError> {
    const LIMIT: Duration = Duration::from_secs(60);
    let began = Instant::now();
    while began.elapsed() < LIMIT {
        if let Some(found) = condition()? {
            return Ok(found);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    wrong(format!("{what} did not come"))
}

/// Pins the calling process to a core.
pub(super) fn stay_on(core: usize) -> Result<(), ProbeError> {
    // SAFETY: a set of bits, all of them clear, then read and not kept.
    let result = unsafe {
        let mut cores: libc::cpu_set_t = zeroed();
        libc::CPU_SET(core, &mut cores);
        libc::sched_setaffinity(0, size_of_val(&cores), &raw const cores)
    };
    nix::errno::Errno::result(result)
        .map(drop)
        .named("sched_setaffinity")
}

/// A call with one word and no memory.
pub(super) fn ask(client: &Client, operation: u32, word: u64) -> Result<u64, Error> {
    let mut words = Words::default();
    words[0] = word;
    let call = Call {
        operation,
        words,
        ..Call::default()
    };
    client.call(call).map(|words| words[0])
}

/// The server of these tests.
#[derive(Default)]
struct Server {
    requests: u64,
    buffer: Vec<u8>,
}

impl Handler for Server {
    fn handle<'a>(&'a mut self, request: &Request<'_>) -> Reply<'a> {
        let mut words = request.words.map(|word| word.wrapping_add(1));
        self.buffer.clear();
        match request.operation {
            operation::INVERT => self.invert(request),
            operation::INVERT_IN_PARTS => invert_in_parts(request),
            operation::SLEEP => std::thread::sleep(Duration::from_millis(request.words[0])),
            operation::REACH => [words[0], words[1]] = reach(request),
            operation::COUNT => words[0] = self.requests,
            _ => {}
        }
        self.requests += 1;
        Reply::new(words, &self.buffer)
    }
}

impl Server {
    fn invert(&mut self, request: &Request<'_>) {
        self.buffer.resize(request.readable as usize, 0);
        let read = request.read(0, &mut self.buffer).unwrap_or(0);
        self.buffer.truncate(read);
        let first = request.first.len().min(read);
        assert_eq!(request.first[..first], self.buffer[..first]);
        self.buffer.iter_mut().for_each(|byte| *byte = !*byte);
    }
}

fn invert_in_parts(request: &Request<'_>) {
    let (mut part, mut offset) = ([0; 1000], 0);
    while let Ok(length @ 1..) = request.read(offset, &mut part) {
        part[..length].iter_mut().for_each(|byte| *byte = !*byte);
        if request.write(offset, &part[..length]).is_err() {
            return;
        }
        offset += length as u64;
    }
}

/// Returns the numbers of bytes read and written; an error's is the highest number.
fn reach(request: &Request<'_>) -> [u64; 2] {
    let [offset, length, ..] = request.words;
    let mut bytes = vec![0xee; length as usize];
    let count = |result: Result<usize, Error>| result.map_or(u64::MAX, |count| count as u64);
    let read = count(request.read(offset, &mut bytes));
    bytes.fill(0xee);
    [read, count(request.write(offset, &bytes))]
}
