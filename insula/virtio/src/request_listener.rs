//! Answering requests of commands about a node's devices ([`mod@insula_node::attachment::request`]).
//!
//! The server opens the sockets before it maps any memory. So without a server the old memory is not
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
use insula_node::attachment::request::{DONE, RequestKind};

use super::device::StartError;

/// Timeout of reading a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Backoff while no descriptor is available.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves requests of one kind until dropped.
#[derive(Debug)]
pub(super) struct RequestListener {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl RequestListener {
    /// Starts calling `handle` with the number of each request; its text is what the command needs to know.
    pub(super) fn start(
        kind: RequestKind,
        id: u32,
        handle: impl FnMut(u64) -> Result<String, StartError> + Send + 'static,
    ) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(RUN)?;
        Self::start_at(kind.socket(Path::new(RUN), id), handle)
    }

    fn start_at(
        path: PathBuf,
        mut handle: impl FnMut(u64) -> Result<String, StartError> + Send + 'static,
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
                    Ok((stream, _)) => drop(answer(stream, &mut handle)),
                    Err(_) => thread::sleep(PAUSE),
                }
            }
        };
        let thread = thread::Builder::new()
            .name("requests".into())
            .spawn(serve)?;
        Ok(Self {
            path,
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for RequestListener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // An empty connection wakes the thread from accept(). It is closed at once: as long as it is open
        // the thread waits for a request.
        let is_woken = UnixStream::connect(&self.path).is_ok();
        let _ = fs::remove_file(&self.path);
        if let Some(thread) = self.thread.take().filter(|_| is_woken) {
            let _ = thread.join();
        }
    }
}

fn answer(
    mut stream: UnixStream,
    handle: &mut impl FnMut(u64) -> Result<String, StartError>,
) -> io::Result<()> {
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    let mut request = [0; 8];
    stream.read_exact(&mut request)?;
    let answer = match handle(u64::from_ne_bytes(request)) {
        Ok(more) => format!("{DONE}{more}"),
        Err(error) => error.to_string(),
    };
    stream.write_all(answer.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use insula_node::attachment::request::request_at;

    use super::*;

    fn socket(folder: &Path) -> PathBuf {
        RequestKind::Resize.socket(folder, 7)
    }

    #[test]
    fn a_request_is_answered_after_it_was_handled() {
        let folder = tempfile::tempdir().unwrap();
        let path = socket(folder.path());
        assert_eq!(request_at(&path, 3).unwrap(), None, "no server yet");
        let (sender, receiver) = mpsc::channel();
        let handle = move |number| {
            sender.send(number).unwrap();
            match number {
                4 => Ok("more".into()),
                _ => Err(StartError::Backend("no room".into())),
            }
        };
        let listener = RequestListener::start_at(path.clone(), handle).unwrap();
        assert_eq!(request_at(&path, 4).unwrap().as_deref(), Some("more"));
        assert_eq!(receiver.try_recv(), Ok(4), "before the answer");
        let refused = request_at(&path, 5).unwrap_err();
        assert_eq!(refused.to_string(), "no room");
        // A connection without a request does not block the server for good.
        drop(UnixStream::connect(&path).unwrap());
        assert!(request_at(&path, 4).unwrap().is_some());
        let began = Instant::now();
        drop(listener);
        assert!(began.elapsed() < REQUEST_TIMEOUT, "it waits for a request");
        assert!(!path.exists());
        assert_eq!(request_at(&path, 3).unwrap(), None, "no server any more");
    }

    #[test]
    fn a_stale_socket_counts_as_no_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = socket(folder.path());
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        assert_eq!(request_at(&path, 3).unwrap(), None);
        let listener = RequestListener::start_at(path.clone(), |_| Ok(String::new())).unwrap();
        assert!(request_at(&path, 3).unwrap().is_some());
        drop(listener);
    }
}
