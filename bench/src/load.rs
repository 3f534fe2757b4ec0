//! Clients that ask a server again and again, and give up on an answer that takes too long.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time within which an answer has to come, a connection's included.
pub const TIMEOUT: Duration = Duration::from_secs(1);
/// Pause of a client between an answer and its next request.
pub const PAUSE: Duration = Duration::from_millis(500);

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it had ended, since the first one.
    pub ended: Duration,
    /// How long its answer took; `None`: it failed.
    pub took: Option<Duration>,
}

/// The clients.
pub struct Load {
    began: Instant,
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Vec<Request>>>,
}

impl Load {
    /// Starts so many.
    #[must_use]
    pub fn start(server: SocketAddr, clients: usize) -> Self {
        let (began, stop) = (Instant::now(), Arc::<AtomicBool>::default());
        let start = |_| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || ask_until(&stop, server, began))
        };
        Self {
            began,
            clients: (0..clients).map(start).collect(),
            stop,
        }
    }

    /// Waits until so much time has passed since the start.
    pub fn wait_until(&self, at: Duration) {
        thread::sleep(at.saturating_sub(self.began.elapsed()));
    }

    /// Ends them, and returns all requests.
    ///
    /// # Errors
    /// When a client has panicked.
    pub fn end(self) -> io::Result<Vec<Request>> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for client in self.clients {
            let made = client.join();
            all.extend(made.map_err(|_| io::Error::other("a client panicked"))?);
        }
        Ok(all)
    }
}

fn ask_until(stop: &AtomicBool, server: SocketAddr, began: Instant) -> Vec<Request> {
    let (mut made, mut stream) = (Vec::new(), None);
    while !stop.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let answered = ask(&mut stream, server);
        if answered.is_err() {
            stream = None;
        }
        made.push(Request {
            ended: began.elapsed(),
            took: answered.is_ok().then(|| asked.elapsed()),
        });
        thread::sleep(PAUSE);
    }
    made
}

/// Asks once, by a connection that is made if there is none.
fn ask(stream: &mut Option<TcpStream>, server: SocketAddr) -> io::Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    let stream = match stream {
        Some(stream) => stream,
        none => none.insert(connect(server)?),
    };
    let mut byte = [7];
    stream.write_all(&byte)?;
    // Of 0 the socket would wait for ever.
    let left = deadline.saturating_duration_since(Instant::now());
    stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
    stream.read_exact(&mut byte)
}

fn connect(server: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&server, TIMEOUT)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Answers, and failures, of each of the first `seconds`.
#[must_use]
pub fn by_second(requests: &[Request], seconds: usize) -> Vec<(u32, u32)> {
    let mut counts = vec![(0, 0); seconds];
    for request in requests {
        let second = usize::try_from(request.ended.as_secs()).ok();
        let Some((answered, failed)) = second.and_then(|second| counts.get_mut(second)) else {
            continue;
        };
        *answered += u32::from(request.took.is_some());
        *failed += u32::from(request.took.is_none());
    }
    counts
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn answers_and_failures_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // It answers the first request of each connection, and no other.
        thread::spawn(move || {
            let mut kept = Vec::new();
            while let Ok((mut stream, _)) = listener.accept() {
                let mut byte = [0];
                let _ = stream
                    .read_exact(&mut byte)
                    .and_then(|()| stream.write_all(&byte));
                kept.push(stream);
            }
        });
        let load = Load::start(address, 1);
        load.wait_until(PAUSE * 2 + TIMEOUT);
        let requests = load.end().unwrap();
        let failed = |request: &Request| request.took.is_none();
        assert!(
            !failed(&requests[0]) && failed(&requests[1]),
            "{requests:?}"
        );
        let counts = by_second(&requests, 60);
        let sum = counts.iter().map(|(one, other)| one + other).sum::<u32>();
        assert_eq!(sum as usize, requests.len());
        assert_eq!(counts[0], (1, 0));
    }
}
