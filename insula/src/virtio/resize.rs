//! Telling whoever serves a node's devices that the node's memory changes, and waiting for it.
//!
//! Back ends reach what their tables of the node's memory have, and no more. So a node must not use
//! new memory before they have it, and memory must not go back to the base before they have let go of
//! it: whoever changes a node asks here, and gets an answer when all back ends know.
//!
//! Who serves the devices opens the socket before it maps any memory. So if nobody is there, nobody
//! has mapped the memory as it was before: whoever comes later finds it as it is.

use std::fs::{self, DirBuilder};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::device::StartError;
use crate::state::RUN;

/// How long it may take until all devices have the memory.
const LIMIT: Duration = Duration::from_secs(60);
/// How long whoever asks may take to say for what.
const ASKED_WITHIN: Duration = Duration::from_secs(5);
/// While there are no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);
/// The answer that all devices have the memory; any other one tells why not.
const DONE: &str = "done";

/// The devices of a node do not work with the memory that it is to have.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    /// Whoever serves them said why.
    #[error("{0}")]
    Refused(String),
    /// It did not answer, or could not be asked.
    #[error("whoever serves them does not answer: {0}")]
    Silent(#[from] io::Error),
}

/// Has all devices of the node with this id work with its first `chunks` chunks of memory, and no
/// others, if anybody serves them.
///
/// # Errors
/// [`ResizeError`]; they work with what they had.
pub fn resize(id: u32, chunks: usize) -> Result<(), ResizeError> {
    resize_at(&path(Path::new(RUN), id), chunks)
}

fn resize_at(path: &Path, chunks: usize) -> Result<(), ResizeError> {
    let mut stream = match UnixStream::connect(path) {
        Err(error) if is_nobody(&error) => return Ok(()),
        connected => connected?,
    };
    stream.set_read_timeout(Some(LIMIT))?;
    let mut answer = String::new();
    let asked = stream
        .write_all(&(chunks as u64).to_ne_bytes())
        .and_then(|()| stream.read_to_string(&mut answer));
    match asked {
        // Whoever served them has ended, and with it all that had the memory.
        Err(error) if is_nobody(&error) => return Ok(()),
        asked => asked?,
    };
    match answer.as_str() {
        "" | DONE => Ok(()),
        _ => Err(ResizeError::Refused(answer)),
    }
}

fn is_nobody(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
    )
}

fn path(folder: &Path, id: u32) -> PathBuf {
    folder.join(format!("resize-{id}"))
}

/// Answers those who change the node's memory, as long as this lives.
#[derive(Debug)]
pub(super) struct Resizing {
    path: PathBuf,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Resizing {
    /// From now on `change` is called with how many of the node's chunks its devices are to have.
    pub(super) fn answer(
        id: u32,
        change: impl FnMut(usize) -> Result<(), StartError> + Send + 'static,
    ) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(RUN)?;
        Self::answer_at(path(Path::new(RUN), id), change)
    }

    fn answer_at(
        path: PathBuf,
        mut change: impl FnMut(usize) -> Result<(), StartError> + Send + 'static,
    ) -> io::Result<Self> {
        // It may be left of a supervisor that was killed.
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        let ends = Arc::new(AtomicBool::new(false));
        let to_end = Arc::clone(&ends);
        let serve = move || {
            while !to_end.load(Ordering::Acquire) {
                match listener.accept() {
                    // Who asks nonsense, or does not wait, is not answered.
                    Ok((stream, _)) => drop(answer(stream, &mut change)),
                    Err(_) => thread::sleep(PAUSE),
                }
            }
        };
        let thread = thread::Builder::new().name("resize".into()).spawn(serve)?;
        Ok(Self {
            path,
            ends,
            thread: Some(thread),
        })
    }
}

impl Drop for Resizing {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        // Whoever waits there for somebody to ask is woken by one who does not.
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
    stream.set_read_timeout(Some(ASKED_WITHIN))?;
    let mut asked = [0; 8];
    stream.read_exact(&mut asked)?;
    let chunks = usize::try_from(u64::from_ne_bytes(asked)).unwrap_or(usize::MAX);
    let answer = match change(chunks) {
        Ok(()) => DONE.to_owned(),
        Err(error) => error.to_string(),
    };
    stream.write_all(answer.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn who_asks_is_answered_when_the_devices_have_the_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = path(folder.path(), 7);
        resize_at(&path, 3).expect("nobody serves devices");
        let (told, heard) = mpsc::channel();
        let change = move |chunks| {
            told.send(chunks).unwrap();
            match chunks {
                4 => Ok(()),
                _ => Err(StartError::BackEnd("no room".into())),
            }
        };
        let resizing = Resizing::answer_at(path.clone(), change).unwrap();
        resize_at(&path, 4).unwrap();
        assert_eq!(heard.try_recv(), Ok(4), "before the answer");
        let refused = resize_at(&path, 5).unwrap_err();
        assert!(matches!(&refused, ResizeError::Refused(why) if why == "no room"));
        // One who says nothing holds nobody up for good.
        drop(UnixStream::connect(&path).unwrap());
        resize_at(&path, 4).unwrap();
        drop(resizing);
        assert!(!path.exists());
        resize_at(&path, 3).expect("nobody serves them any more");
    }

    #[test]
    fn what_a_killed_supervisor_left_is_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = path(folder.path(), 7);
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        resize_at(&path, 3).unwrap();
        let resizing = Resizing::answer_at(path.clone(), |_| Ok(())).unwrap();
        resize_at(&path, 3).unwrap();
        drop(resizing);
    }
}
