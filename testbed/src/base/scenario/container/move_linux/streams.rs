//! Connections to a server that echoes: bytes both ways at once, each of which is checked.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::base::Finding;
use crate::base::support::insula_command::wait_at_most;

/// Bytes that are on their way at once: some are always unread, on either side.
const WINDOW: u64 = 8192;
/// Most bytes that are sent at once.
const PIECE: usize = 1500;
/// Pause of every second connection's receiver before it reads again, and of the other ones' senders when
/// they are that far ahead. So what is unread waits at the client of some and at the server of others, and an
/// emulator has time for what is tried meanwhile.
const PAUSE: Duration = Duration::from_millis(200);
/// Bytes that come back on each connection before it is said to go on.
const GOES_ON: u64 = 4 * WINDOW;

/// Within what time a connection goes on. While its container stands still, the container's TCP waits twice
/// as long each time before it sends again, up to 120 s (`TCP_RTO_MAX` of Linux); so it may do when the
/// container goes on where it was.
pub(super) const GOES_ON_TIMEOUT: Duration = Duration::from_secs(300);

/// Connections that live until they are ended.
pub(in super::super) struct Streams {
    all: Vec<(Arc<Stream>, Directions)>,
}

/// The threads of both directions of a connection.
type Directions = JoinHandle<Result<(), String>>;

/// What both directions of a connection share.
#[derive(Default)]
struct Stream {
    /// Bytes that have come back, as sent.
    checked: AtomicU64,
    /// Longest time without any, in milliseconds.
    longest_pause_ms: AtomicU64,
    ending: AtomicBool,
    progress: (Mutex<()>, Condvar),
}

impl Streams {
    /// Opens connections and begins to send.
    pub(in super::super) fn start(address: &str, count: usize) -> Result<Self, Finding> {
        Self::start_at((address, 80), count)
    }

    /// The same to another port.
    pub(in super::super) fn start_at(
        at: impl ToSocketAddrs,
        count: usize,
    ) -> Result<Self, Finding> {
        let mut all = Vec::new();
        for seed in 0..count {
            let connection = TcpStream::connect(&at)?;
            connection.set_read_timeout(Some(GOES_ON_TIMEOUT))?;
            connection.set_write_timeout(Some(GOES_ON_TIMEOUT))?;
            let stream = Arc::new(Stream::default());
            let (sending, to) = (Arc::clone(&stream), connection.try_clone()?);
            let (receiving, from) = (Arc::clone(&stream), connection);
            let sender = thread::spawn(move || sending.send(seed as u64, to));
            let both = thread::spawn(move || {
                let received = receiving.receive(seed as u64, from);
                let sent = sender.join().unwrap_or_else(|_| Err("it panicked".into()));
                received.and(sent)
            });
            all.push((stream, both));
        }
        Ok(Self { all })
    }

    /// These and others.
    pub(in super::super) fn and(mut self, others: Self) -> Self {
        self.all.extend(others.all);
        self
    }

    /// Waits until more bytes have come back on every connection.
    pub(in super::super) fn go_on(&self) -> Result<(), Finding> {
        let checked = |(stream, _): &(Arc<Stream>, _)| stream.checked.load(Ordering::Relaxed);
        let before: Vec<_> = self.all.iter().map(checked).collect();
        for (number, ((stream, both), before)) in self.all.iter().zip(before).enumerate() {
            wait_at_most(
                GOES_ON_TIMEOUT,
                &format!("connection {number} to go on"),
                || {
                    Finding::unless(!both.is_finished(), || {
                        format!("connection {number} is lost")
                    })?;
                    let now = stream.checked.load(Ordering::Relaxed);
                    Ok((now >= before + GOES_ON).then_some(()))
                },
            )?;
        }
        Ok(())
    }

    /// The longest time without a byte, of all connections.
    pub(in super::super) fn longest_pause_ms(&self) -> u64 {
        let pauses = self.all.iter();
        let pauses = pauses.map(|(one, _)| one.longest_pause_ms.load(Ordering::Relaxed));
        pauses.max().unwrap_or_default()
    }

    /// Ends all, each of which must have had every byte.
    pub(in super::super) fn end(self) -> Result<(), Finding> {
        for (stream, _) in &self.all {
            stream.ending.store(true, Ordering::Relaxed);
            stream.progress.1.notify_all();
        }
        for (number, (_, both)) in self.all.into_iter().enumerate() {
            let ended = both.join().unwrap_or_else(|_| Err("it panicked".into()));
            ended.map_err(|error| Finding::new(format!("connection {number}: {error}")))?;
        }
        Ok(())
    }
}

impl Stream {
    /// Sends random bytes of that seed, at most a window ahead of what has come back.
    fn send(&self, seed: u64, mut to: TcpStream) -> Result<(), String> {
        let (mut random, mut sent) = (fastrand::Rng::with_seed(seed), 0);
        let mut sizes = fastrand::Rng::new();
        while !self.ending.load(Ordering::Relaxed) {
            let piece: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
                .take(sizes.usize(1..PIECE))
                .collect();
            to.write_all(&piece)
                .map_err(|error| format!("sending: {error}"))?;
            sent += piece.len() as u64;
            if self.is_behind(sent) {
                self.wait_for_window(sent);
                if !receiver_pauses(seed) {
                    thread::sleep(PAUSE);
                }
            }
        }
        to.shutdown(Shutdown::Write)
            .map_err(|error| error.to_string())
    }

    /// Whether more than a window has not come back yet of what was sent.
    fn is_behind(&self, sent: u64) -> bool {
        sent - self.checked.load(Ordering::Relaxed) > WINDOW
    }

    /// Waits until it is no longer, or is to end.
    fn wait_for_window(&self, sent: u64) {
        let (lock, progress) = &self.progress;
        let guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |(): &mut ()| self.is_behind(sent) && !self.ending.load(Ordering::Relaxed);
        drop(progress.wait_timeout_while(guard, GOES_ON_TIMEOUT, waits));
    }

    /// Receives what was sent, in the same order and no byte else, up to the end.
    fn receive(&self, seed: u64, mut from: TcpStream) -> Result<(), String> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut buffer = [0; 4096];
        loop {
            let began = Instant::now();
            let count = from
                .read(&mut buffer)
                .map_err(|error| format!("receiving: {error}"))?;
            if count == 0 {
                return match self.ending.load(Ordering::Relaxed) {
                    true => Ok(()),
                    false => Err("the server closed it".into()),
                };
            }
            if buffer[..count].iter().any(|&byte| byte != random.u8(..)) {
                return Err("it returns other bytes than were sent".into());
            }
            let pause = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.longest_pause_ms.fetch_max(pause, Ordering::Relaxed);
            let guard = self
                .progress
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            self.checked.fetch_add(count as u64, Ordering::Relaxed);
            self.progress.1.notify_all();
            drop(guard);
            if receiver_pauses(seed) {
                thread::sleep(PAUSE);
            }
        }
    }
}

/// Whether the receiver of the connection of that seed pauses, not its sender.
fn receiver_pauses(seed: u64) -> bool {
    seed.is_multiple_of(2)
}
