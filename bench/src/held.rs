//! A server with so much memory, and what clients on so many connections see of it while it is moved.

use std::convert::Infallible;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::probe::spin;

/// Port on which it listens.
pub const PORT: u16 = 7001;
/// Size of a page, in bytes: each request changes one.
const PAGE: usize = 4096;
/// Bytes that it reads at once.
const BUFFER: usize = 64;
/// Timeout of the server's start, and of an answer: TCP waits longer between attempts the longer nobody answers.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Echoes what comes on all connections, in one thread, until it is killed. It has `bytes` of memory in use, and
/// computes `turns` of a loop before each answer.
///
/// # Errors
/// When it cannot listen.
pub fn serve(bytes: usize, turns: u64) -> io::Result<Infallible> {
    let mut memory = filled(bytes);
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
    let mut streams: Vec<TcpStream> = Vec::new();
    let mut page = 0;
    loop {
        let (is_joined, ready) = ready(&listener, &streams)?;
        for index in ready.into_iter().rev() {
            let mut buffer = [0; BUFFER];
            let answered = match streams[index].read(&mut buffer) {
                Ok(size) if size > 0 => {
                    black_box(spin(black_box(turns)));
                    streams[index].write_all(&buffer[..size]).is_ok()
                }
                _ => false,
            };
            // That client has gone. What takes its place has had its turn: they are read from the last on.
            if !answered {
                streams.swap_remove(index);
            }
            page = (page + PAGE) % memory.len();
            memory[page] = memory[page].wrapping_add(1);
        }
        if is_joined {
            let stream = listener.accept()?.0;
            stream.set_nodelay(true)?;
            streams.push(stream);
        }
    }
}

/// Whether somebody connects, and the streams from which there is something to read, in order.
fn ready(listener: &TcpListener, streams: &[TcpStream]) -> io::Result<(bool, Vec<usize>)> {
    let all = [listener.as_fd()].into_iter();
    let all = all.chain(streams.iter().map(AsFd::as_fd));
    let mut polled: Vec<_> = all.map(|one| PollFd::new(one, PollFlags::POLLIN)).collect();
    // Restored by CRIU, a wait that was interrupted is not begun again.
    while let Err(error) = poll(&mut polled, PollTimeout::NONE) {
        if error != Errno::EINTR {
            return Err(error.into());
        }
    }
    let mut are_ready = polled.iter().map(|one| one.any().unwrap_or(true));
    let is_joined = are_ready.next().unwrap_or_default();
    let ready = are_ready.enumerate().filter(|(_, is_ready)| *is_ready);
    Ok((is_joined, ready.map(|(index, _)| index).collect()))
}

/// Memory with content that does not compress, and is no page of zeros.
fn filled(bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut memory = vec![1; bytes.max(PAGE)];
    random.fill(&mut memory);
    memory
}

/// Clients that send a byte on one connection after another, and wait for it.
pub struct Clients {
    stop: Arc<AtomicBool>,
    trips: Arc<AtomicU64>,
    thread: JoinHandle<io::Result<Duration>>,
}

impl Clients {
    /// Connects them.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub fn start(address: &str, connections: usize) -> io::Result<Self> {
        let streams = (0..connections).map(|_| connect(address));
        let mut streams = streams.collect::<io::Result<Vec<_>>>()?;
        let (stop, trips) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&trips));
        let thread = thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !stopped.load(Ordering::Relaxed) {
                for stream in &mut streams {
                    longest = longest.max(trip(stream)?);
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(longest)
        });
        let clients = Self {
            stop,
            trips,
            thread,
        };
        clients.go_round(connections)?;
        Ok(clients)
    }

    /// Waits until each connection has been answered once more.
    ///
    /// # Errors
    /// When one is not.
    pub fn go_round(&self, connections: usize) -> io::Result<()> {
        let wanted = self.trips.load(Ordering::Relaxed) + 2 * connections as u64;
        let began = Instant::now();
        while self.trips.load(Ordering::Relaxed) < wanted {
            if self.thread.is_finished() || began.elapsed() > TIMEOUT {
                return Err(io::Error::other("a connection was lost"));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Ends them. Returns the longest time that an answer took.
    ///
    /// # Errors
    /// When a connection was lost.
    pub fn longest(self) -> io::Result<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.join();
        ended.unwrap_or_else(|_| Err(io::Error::other("the clients panicked")))
    }
}

fn trip(stream: &mut TcpStream) -> io::Result<Duration> {
    let began = Instant::now();
    let mut byte = [7];
    stream.write_all(&byte)?;
    stream.read_exact(&mut byte)?;
    Ok(began.elapsed())
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let began = Instant::now();
    let stream = loop {
        match TcpStream::connect((address, PORT)) {
            Ok(stream) => break stream,
            Err(error) if began.elapsed() > TIMEOUT => return Err(error),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    };
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_connections_are_answered() {
        let server = thread::spawn(|| serve(1 << 20, 10));
        let clients = Clients::start("127.0.0.1", 30).unwrap();
        clients.go_round(30).unwrap();
        assert!(clients.longest().unwrap() > Duration::ZERO);
        // Those of the first have gone.
        let clients = Clients::start("127.0.0.1", 2).unwrap();
        assert!(clients.longest().unwrap() > Duration::ZERO);
        assert!(!server.is_finished());
    }
}
