//! Answering announced changes of a node's memory ([`mod@insula_node::attachment::resize`]) when
//! all backends have switched to it.
//!
//! The server opens the socket before it maps any memory. So without a server the old memory is not
//! mapped, and a later server finds the new one.

use std::fs::{self, DirBuilder};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use insula_base::state::RUN;
use insula_node::attachment::resize::{DONE, socket};

use super::device::StartError;

/// Timeout of reading a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Backoff while no descriptor is available.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves resize requests until dropped.
#[derive(Debug)]
pub(super) struct ResizeListener {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ResizeListener {
    /// Starts calling `change` with the number of chunks of each request.
    pub(super) fn start(
        id: u32,
        change: impl FnMut(usize) -> Result<(), StartError> + Send + 'static,
    ) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(RUN)?;
        Self::start_at(socket(Path::new(RUN), id), change)
    }

    fn start_at(
        path: PathBuf,
        mut change: impl FnMut(usize) -> Result<(), StartError> + Send + 'static,
    ) -> io::Result<Self> {
        // A killed supervisor may have left the socket.
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        let stop = Arc::new(AtomicBool::new(false));
        let should_stop = Arc::clone(&stop);
        let serve = move || {
            while !should_stop.load(Ordering::Acquire) {
                match listener.accept() {
                    // An invalid request, or a closed connection, gets no answer.
                    Ok((stream, _)) => drop(answer(stream, &mut change)),
                    Err(_) => thread::sleep(PAUSE),
                }
            }
        };
        let thread = thread::Builder::new().name("resize".into()).spawn(serve)?;
        Ok(Self {
            path,
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for ResizeListener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // An empty connection wakes the thread from accept().
        let woken = UnixStream::connect(&self.path);
        let _ = fs::remove_file(&self.path);
        if let (Ok(_), Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn answer(
    mut stream: UnixStream,
    change: &mut impl FnMut(usize) -> Result<(), StartError>,
) -> io::Result<()> {
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    let mut request = [0; 8];
    stream.read_exact(&mut request)?;
    let chunks = usize::try_from(u64::from_ne_bytes(request)).unwrap_or(usize::MAX);
    let answer = match change(chunks) {
        Ok(()) => DONE.to_owned(),
        Err(error) => error.to_string(),
    };
    stream.write_all(answer.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use insula_node::attachment::resize::resize_at;

    use super::*;

    #[test]
    fn a_request_is_answered_after_the_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = socket(folder.path(), 7);
        resize_at(&path, 3).expect("no server yet");
        let (sender, receiver) = mpsc::channel();
        let change = move |chunks| {
            sender.send(chunks).unwrap();
            match chunks {
                4 => Ok(()),
                _ => Err(StartError::Backend("no room".into())),
            }
        };
        let listener = ResizeListener::start_at(path.clone(), change).unwrap();
        resize_at(&path, 4).unwrap();
        assert_eq!(receiver.try_recv(), Ok(4), "before the answer");
        let refused = resize_at(&path, 5).unwrap_err();
        assert_eq!(refused.to_string(), "no room");
        // A connection without a request does not block the server for good.
        drop(UnixStream::connect(&path).unwrap());
        resize_at(&path, 4).unwrap();
        drop(listener);
        assert!(!path.exists());
        resize_at(&path, 3).expect("no server any more");
    }

    #[test]
    fn a_stale_socket_counts_as_no_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = socket(folder.path(), 7);
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        resize_at(&path, 3).unwrap();
        let listener = ResizeListener::start_at(path.clone(), |_| Ok(())).unwrap();
        resize_at(&path, 3).unwrap();
        drop(listener);
    }
}
