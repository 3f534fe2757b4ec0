//! Keeping a device at work whose program may end at any moment.
//!
//! Where a program can be followed by another, that finds what its predecessor has left. The driver
//! sees nothing of it but that its requests take longer. What had been begun is done again: a request
//! that has not been answered may have been executed or not, as on a disk that loses its power, and
//! a second time makes no difference. Otherwise the device is lost, and with it the node.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::back_end::{Connected, regions};
use super::device::{StartError, Virtqueue};
use super::memory::NodeMemory;
use super::notes::{DeviceNotes, Notebook};
use super::outstanding::{Outstanding, Unknown};
use super::vhost::{Wire, failed, hand_over};

/// How often virtqueues are looked at in which something happens: often enough that a ring does not
/// go round unseen.
const LOOK_MIN: Duration = Duration::from_millis(1);
/// The same where nothing does.
const LOOK_MAX: Duration = Duration::from_millis(64);
/// Wait before a program is started again that could not be, which doubles each time.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A program that has worked for so long may be followed by another at once.
const SETTLED_AFTER: Duration = Duration::from_secs(1);

/// Who is told of what goes wrong with a device at work.
pub(super) trait Trouble: Send + Sync {
    /// It goes on, but its user should know.
    fn complain(&self, text: &str);

    /// The device will never work again: what its driver waits for does not come.
    fn device_lost(&self, text: &str);
}

/// What starts another program.
pub(super) type Successor = Box<dyn Fn() -> Result<Connected, StartError> + Send>;

/// A device at work, and all that its next program needs.
pub(super) struct Kept {
    /// What it is, for messages.
    pub(super) name: String,
    pub(super) memory: NodeMemory,
    /// What its driver has chosen.
    pub(super) features: u64,
    pub(super) queues: Vec<Virtqueue>,
    pub(super) wires: Vec<Wire>,
    /// None where no other program could go on with what the first has begun.
    pub(super) successor: Option<Successor>,
    /// What there is to know for whoever is to go on when this process is killed.
    pub(super) notes: DeviceNotes,
    pub(super) trouble: Arc<dyn Trouble>,
}

/// Keeps a device at work as long as this lives.
pub(super) struct Keeper {
    /// Hung up when it is to end.
    life: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Has the program work on the device's virtqueues, and its successors.
    ///
    /// # Errors
    /// [`StartError`]; the program has ended.
    pub(super) fn begin(program: Connected, kept: Kept) -> Result<Self, StartError> {
        let (life, seen) = UnixStream::pair().map_err(failed("making a socket"))?;
        let notebook = kept.notes.open().map_err(failed("writing notes"))?;
        let follow = |(number, queue)| {
            let mut outstanding = Outstanding::follow(&kept.memory, queue);
            if let Some(note) = notebook.read(number) {
                outstanding.recall(&note);
            }
            outstanding
        };
        let mut work = Work {
            outstanding: kept.queues.iter().enumerate().map(follow).collect(),
            kept,
            notebook,
            life: seen,
        };
        if let Err(error) = work.hand_over(&program) {
            if let BeginError::Unknown(unknown) = error {
                work.lose(&unknown);
            }
            return Err(StartError(error.to_string()));
        }
        let thread = thread::Builder::new()
            .name("keeper".into())
            .spawn(move || work.keep(program))
            .map_err(failed("starting a thread"))?;
        Ok(Self {
            life: Some(life),
            thread: Some(thread),
        })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.life = None;
        if let Some(thread) = self.thread.take() {
            // If it has panicked, its program is gone as well.
            let _ = thread.join();
        }
    }
}

/// Why a program does not work on the virtqueues.
#[derive(Debug, thiserror::Error)]
enum BeginError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Unknown(#[from] Unknown),
}

/// What a wait has come to.
enum Waited {
    /// The device is to stop.
    Stop,
    /// The program has ended.
    Ended,
    TimedOut,
}

struct Work {
    kept: Kept,
    outstanding: Vec<Outstanding>,
    notebook: Notebook,
    life: UnixStream,
}

impl Work {
    /// Has a program use what has not been used.
    fn hand_over(&mut self, program: &Connected) -> Result<(), BeginError> {
        let kept = &self.kept;
        let mut wired = Vec::new();
        let queues = kept.queues.iter().zip(&kept.wires);
        for (queue, outstanding) in queues.zip(&mut self.outstanding) {
            wired.push((queue, outstanding.make_available_again(&kept.memory)?));
        }
        for (number, outstanding) in self.outstanding.iter().enumerate() {
            let noted = self.notebook.write(number, &outstanding.note());
            noted.map_err(failed("writing notes"))?;
        }
        let regions = regions(&kept.memory);
        hand_over(&program.front_end, &regions, kept.features, &wired)?;
        kept.wires.iter().for_each(Wire::signal_both);
        Ok(())
    }

    /// Until the device is to stop, or is lost.
    fn keep(mut self, mut program: Connected) {
        loop {
            let began = Instant::now();
            if matches!(self.attend(&program), Waited::Stop) {
                return program.end();
            }
            // Nothing touches the node's memory any more once this has returned.
            drop(program);
            let worked = began.elapsed();
            match self.start_again(worked) {
                Some(next) => program = next,
                None => return,
            }
        }
    }

    /// Follows the virtqueues until the device is to stop, or the program has ended.
    fn attend(&mut self, program: &Connected) -> Waited {
        let follows = self.kept.successor.is_some();
        let mut interval = LOOK_MIN;
        loop {
            let time = follows.then_some(interval);
            match self.wait(Some(program.as_fd()), time) {
                Waited::TimedOut => {}
                waited => return waited,
            }
            interval = match self.look() {
                true => LOOK_MIN,
                false => LOOK_MAX.min(interval * 2),
            };
        }
    }

    /// Whether anything has happened in any of the virtqueues.
    fn look(&mut self) -> bool {
        let mut happened = false;
        for (number, outstanding) in self.outstanding.iter_mut().enumerate() {
            if outstanding.look(&self.kept.memory) {
                happened = true;
                // If it cannot be written, whoever reads the last one finds that out.
                let _ = self.notebook.write(number, &outstanding.note());
            }
        }
        happened
    }

    /// The next program, at work; none if there can be none, or is to be none.
    fn start_again(&mut self, worked: Duration) -> Option<Connected> {
        let mut pause = PAUSE_MIN;
        let mut wait = worked < SETTLED_AFTER;
        loop {
            if wait && matches!(self.wait(None, Some(pause)), Waited::Stop) {
                return None;
            }
            match self.start_next() {
                Ok(program) => {
                    self.complain("its program had ended; another one goes on with its work");
                    return Some(program);
                }
                Err(BeginError::Unknown(unknown)) => {
                    self.lose(&unknown);
                    return None;
                }
                Err(BeginError::Start(error)) => self.complain(&error.to_string()),
            }
            (wait, pause) = (true, PAUSE_MAX.min(pause * 2));
        }
    }

    fn start_next(&mut self) -> Result<Connected, BeginError> {
        let Some(successor) = &self.kept.successor else {
            return Err(Unknown::State.into());
        };
        let program = successor()?;
        self.hand_over(&program)?;
        Ok(program)
    }

    fn lose(&self, why: &Unknown) {
        let Kept { name, trouble, .. } = &self.kept;
        trouble.device_lost(&format!("{name}: its program has ended, and {why}"));
    }

    fn complain(&self, text: &str) {
        let Kept { name, trouble, .. } = &self.kept;
        trouble.complain(&format!("{name}: {text}"));
    }

    /// For at most so long, if that is limited.
    fn wait(&self, program: Option<BorrowedFd<'_>>, time: Option<Duration>) -> Waited {
        let waits = [Some(self.life.as_fd()), program];
        let mut polled: Vec<_> = waits
            .into_iter()
            .flatten()
            .map(|fd| PollFd::new(fd, PollFlags::POLLHUP))
            .collect();
        let time = time.map(PollTimeout::try_from);
        let time = time.map_or(PollTimeout::NONE, |time| time.unwrap_or(PollTimeout::MAX));
        // A signal is as good as a moment passed.
        let _ = poll(&mut polled, time);
        let is_over = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        match polled.as_slice() {
            [life, ..] if is_over(life) => Waited::Stop,
            [_, program] if is_over(program) => Waited::Ended,
            _ => Waited::TimedOut,
        }
    }
}
