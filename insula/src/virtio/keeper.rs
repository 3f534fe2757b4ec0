//! Keeping a device at work whose program may end at any moment.
//!
//! Where a program can be followed by another, that finds what its predecessor has left. The driver
//! sees nothing of it but that its requests take longer. What had been begun is done again: a request
//! that has not been answered may have been executed or not, as on a disk that loses its power, and
//! a second time makes no difference. Otherwise the device is lost, and with it the node.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::back_end::{ANSWER_LIMIT, Connected};
use super::device::{StartError, Virtqueue};
use super::memory::NodeMemory;
use super::notes::{DeviceNotes, Notebook};
use super::outstanding::{Outstanding, Unknown};
use super::pause::Pause;
use super::vhost::{Wire, failed, hand_over, lies_in};

/// How often virtqueues are looked at in which something happens: often enough that a ring does not
/// go round unseen.
const LOOK_MIN: Duration = Duration::from_millis(1);
/// The same where nothing does.
const LOOK_MAX: Duration = Duration::from_millis(64);
/// How long it may take until a program has been told of other memory. Meanwhile no driver is answered,
/// which waits ten seconds at most.
const CHANGE_LIMIT: Duration = Duration::from_secs(4);
/// A program that has worked for so long is followed by another at once, and so is the first that has
/// not. If more of them end early, pauses grow.
const SETTLED_AFTER: Duration = Duration::from_secs(10);

/// Who is told of what goes wrong with a device at work.
pub(super) trait Trouble: Send + Sync {
    /// It goes on, but its user should know.
    fn complain(&self, text: &str);

    /// The device will never work again: what its driver waits for does not come.
    fn device_lost(&self, text: &str);

    /// The device does not work now, and why, or it works: for whoever looks at the node, and, if that
    /// is news, for its user.
    fn set_failure(&self, device: &str, why: Option<&str>);
}

/// A device that programs serve.
#[derive(Clone)]
pub(super) struct Served {
    /// What it is, for messages.
    pub(super) name: String,
    /// What whoever follows this process, if it is killed, is to know of it.
    pub(super) notes: DeviceNotes,
    pub(super) trouble: Arc<dyn Trouble>,
}

impl Served {
    pub(super) fn complain(&self, text: &str) {
        self.trouble.complain(&format!("{}: {text}", self.name));
    }

    pub(super) fn device_lost(&self, text: &str) {
        self.trouble.device_lost(&format!("{}: {text}", self.name));
    }

    pub(super) fn set_failure(&self, why: Option<&str>) {
        self.trouble.set_failure(&self.name, why);
    }
}

/// The programs that work on a device, one after the other.
pub(super) struct Programs {
    /// One that has been started already.
    pub(super) first: Option<Connected>,
    /// Starts another.
    pub(super) start: Box<dyn Fn() -> Result<Connected, StartError> + Send>,
    /// Whether one can go on with what another has begun.
    pub(super) follow: bool,
}

/// A device at work, and all that its next program needs.
pub(super) struct Kept {
    pub(super) served: Served,
    pub(super) memory: NodeMemory,
    /// What its driver has chosen.
    pub(super) features: u64,
    pub(super) queues: Vec<Virtqueue>,
    pub(super) wires: Vec<Wire>,
}

/// Memory that the device is to work with from now on, and who is told whether it does.
type Change = (NodeMemory, Sender<Result<(), StartError>>);

/// Keeps a device at work as long as this lives.
pub(super) struct Keeper {
    /// Hung up when it is to end; written to after a change was sent.
    life: Option<UnixStream>,
    changes: Sender<Change>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Has programs work on the device's virtqueues from now on: as soon as there is one.
    ///
    /// # Errors
    /// [`StartError`]; none will.
    pub(super) fn begin(kept: Kept, programs: Programs) -> Result<Self, StartError> {
        let (life, seen) = UnixStream::pair().map_err(failed("making a socket"))?;
        seen.set_nonblocking(true)
            .map_err(failed("making a socket"))?;
        let (changes, changed) = mpsc::channel();
        let Programs {
            first,
            start,
            follow,
        } = programs;
        let work = Work {
            outstanding: follow_all(&kept)?,
            kept,
            start,
            follow,
            notebook: None,
            early_ends: 0,
            pause: Pause::new(),
            life: seen,
            changes: changed,
        };
        let thread = thread::Builder::new()
            .name("keeper".into())
            .spawn(move || work.keep(first))
            .map_err(failed("starting a thread"))?;
        Ok(Self {
            life: Some(life),
            changes,
            thread: Some(thread),
        })
    }
}

/// The virtqueues, followed from where somebody else has left them, if anybody has.
fn follow_all(kept: &Kept) -> Result<Vec<Outstanding>, StartError> {
    let notes = &kept.served.notes;
    let notebook = match notes.are_there() {
        true => Some(notes.open().map_err(failed("reading notes"))?),
        false => None,
    };
    let follow = |(number, queue)| {
        let mut outstanding = Outstanding::follow(&kept.memory, queue);
        let note = notebook.as_ref().and_then(|notebook| notebook.read(number));
        if let Some(note) = note {
            outstanding.recall(&note);
        }
        outstanding
    };
    Ok(kept.queues.iter().enumerate().map(follow).collect())
}

impl Keeper {
    /// Has the device work with that memory; what it had is reached no more when this returns.
    ///
    /// # Errors
    /// [`StartError`]; it works with what it had.
    pub(super) fn change_memory(&self, memory: NodeMemory) -> Result<(), StartError> {
        let (done, answer) = mpsc::channel();
        let ended = |_| StartError::BackEnd("the device has ended".into());
        self.changes
            .send((memory, done))
            .map_err(|_| ended(mpsc::RecvTimeoutError::Disconnected))?;
        let woken = self.life.as_ref().map(|mut life| life.write(&[1]));
        // One that has not read the last of these yet is awake.
        drop(woken);
        answer
            .recv_timeout(CHANGE_LIMIT)
            .map_err(|error| match error {
                mpsc::RecvTimeoutError::Timeout => {
                    StartError::BackEnd("its program does not take the change".into())
                }
                error => ended(error),
            })?
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
    /// The device is to work with other memory.
    Changed,
    TimedOut,
}

struct Work {
    kept: Kept,
    start: Box<dyn Fn() -> Result<Connected, StartError> + Send>,
    follow: bool,
    outstanding: Vec<Outstanding>,
    /// Once a program has been told to work.
    notebook: Option<Notebook>,
    /// Programs that have ended before they had settled, one after the other.
    early_ends: u32,
    pause: Pause,
    life: UnixStream,
    changes: Receiver<Change>,
}

impl Work {
    /// Until the device is to stop, or is lost.
    fn keep(mut self, mut next: Option<Connected>) {
        while let Some(program) = self.begin_work(next.take()) {
            let began = Instant::now();
            if matches!(self.attend(&program, began), Waited::Stop) {
                return program.end();
            }
            // Nothing touches the node's memory any more once this has returned, or it holds the lock
            // that the next one needs.
            drop(program);
            if !self.may_follow_soon(began.elapsed()) {
                return;
            }
        }
    }

    /// A program at work, the given one or another; none if there can be none, or is to be none.
    fn begin_work(&mut self, mut given: Option<Connected>) -> Option<Connected> {
        let is_first = self.notebook.is_none();
        loop {
            let program = given.take().map_or_else(|| self.start_next(), Ok);
            let begun = program.and_then(|program| self.hand_over(&program).map(|()| program));
            match begun {
                Ok(program) => {
                    if !is_first {
                        let text = "its program had ended; another one goes on with its work";
                        self.kept.served.complain(text);
                    }
                    if self.early_ends == 0 {
                        self.works();
                    }
                    return Some(program);
                }
                Err(BeginError::Unknown(unknown)) => {
                    self.lose(&unknown);
                    return None;
                }
                Err(BeginError::Start(error)) => {
                    self.kept.served.set_failure(Some(&error.to_string()));
                }
            }
            let pause = self.pause.next();
            if matches!(self.pause(pause), Waited::Stop) {
                return None;
            }
        }
    }

    fn works(&mut self) {
        (self.early_ends, self.pause) = (0, Pause::new());
        self.kept.served.set_failure(None);
    }

    /// Waits until a program may follow one that has worked for so long; false if the device is to stop.
    fn may_follow_soon(&mut self, worked: Duration) -> bool {
        if worked >= SETTLED_AFTER || !self.follow {
            return true;
        }
        self.early_ends += 1;
        if self.early_ends == 1 {
            return true;
        }
        let why = "its program ends again and again, soon after it was started";
        self.kept.served.set_failure(Some(why));
        let pause = self.pause.next();
        !matches!(self.pause(pause), Waited::Stop)
    }

    /// Has a program use what has not been used.
    fn hand_over(&mut self, program: &Connected) -> Result<(), BeginError> {
        if self.notebook.is_none() {
            let opened = self.kept.served.notes.open();
            self.notebook = Some(opened.map_err(failed("writing notes"))?);
        }
        let kept = &self.kept;
        let mut wired = Vec::new();
        let queues = kept.queues.iter().zip(&kept.wires);
        for (queue, outstanding) in queues.zip(&mut self.outstanding) {
            wired.push((queue, outstanding.make_available_again(&kept.memory)?));
        }
        for (number, outstanding) in self.outstanding.iter().enumerate() {
            if let Some(notebook) = &self.notebook {
                let noted = notebook.write(number, &outstanding.note());
                noted.map_err(failed("writing notes"))?;
            }
        }
        program.within(ANSWER_LIMIT, || {
            hand_over(&program.front_end, kept.features, &wired, || {
                program.tell_of_memory(&kept.memory)
            })
        })?;
        kept.wires.iter().for_each(Wire::signal_both);
        Ok(())
    }

    /// Follows the virtqueues until the device is to stop, or the program has ended.
    fn attend(&mut self, program: &Connected, began: Instant) -> Waited {
        let mut interval = LOOK_MIN;
        loop {
            let time = self.follow.then_some(interval);
            match self.wait(Some(program.as_fd()), time) {
                Waited::TimedOut => {}
                Waited::Changed => match self.change_memory(Some(program)) {
                    true => {}
                    false => return Waited::Ended,
                },
                waited => return waited,
            }
            if self.early_ends > 0 && began.elapsed() >= SETTLED_AFTER {
                self.works();
            }
            interval = match self.look() {
                true => LOOK_MIN,
                false => LOOK_MAX.min(interval * 2),
            };
        }
    }

    /// Does what was sent. False if the program did not, and is to be followed by one that will.
    fn change_memory(&mut self, program: Option<&Connected>) -> bool {
        // What is read tells only that there is something.
        let _ = self.life.read(&mut [0; 16]);
        let mut obeyed = true;
        while let Ok((memory, done)) = self.changes.try_recv() {
            let mut changed = self.change_to(&memory, program.filter(|_| obeyed));
            if changed.is_err() && self.follow && self.has_queues(&memory) {
                (obeyed, changed) = (false, Ok(()));
            }
            if changed.is_ok() {
                self.kept.memory = memory;
            }
            // Who does not wait any more has been told that it failed.
            let _ = done.send(changed);
        }
        obeyed
    }

    fn change_to(
        &self,
        memory: &NodeMemory,
        program: Option<&Connected>,
    ) -> Result<(), StartError> {
        if !self.has_queues(memory) {
            let text = "a virtqueue lies in memory that is to go";
            return Err(StartError::BackEnd(text.into()));
        }
        match program {
            Some(program) => program.change_memory(&self.kept.memory, memory),
            None => Ok(()),
        }
    }

    fn has_queues(&self, memory: &NodeMemory) -> bool {
        self.kept.queues.iter().all(|queue| lies_in(memory, queue))
    }

    /// Whether anything has happened in any of the virtqueues.
    fn look(&mut self) -> bool {
        let mut happened = false;
        for (number, outstanding) in self.outstanding.iter_mut().enumerate() {
            if outstanding.look(&self.kept.memory) {
                happened = true;
                // If it cannot be written, whoever reads the last one finds that out.
                if let Some(notebook) = &self.notebook {
                    let _ = notebook.write(number, &outstanding.note());
                }
            }
        }
        happened
    }

    /// For that long, unless the device is to stop.
    fn pause(&mut self, time: Duration) -> Waited {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.wait(None, Some(left)) {
                Waited::Changed => drop(self.change_memory(None)),
                waited => return waited,
            }
        }
    }

    fn start_next(&self) -> Result<Connected, BeginError> {
        match self.follow || self.notebook.is_none() {
            true => Ok((self.start)()?),
            false => Err(Unknown::State.into()),
        }
    }

    fn lose(&self, why: &Unknown) {
        let text = format!("its program has ended, and {why}");
        self.kept.served.device_lost(&text);
    }

    /// For at most so long, if that is limited.
    fn wait(&self, program: Option<BorrowedFd<'_>>, time: Option<Duration>) -> Waited {
        let waits = [Some(self.life.as_fd()), program];
        let mut polled: Vec<_> = waits
            .into_iter()
            .flatten()
            .map(|fd| PollFd::new(fd, PollFlags::POLLHUP))
            .collect();
        polled[0].set_events(PollFlags::POLLIN);
        let time = time.map(PollTimeout::try_from);
        let time = time.map_or(PollTimeout::NONE, |time| time.unwrap_or(PollTimeout::MAX));
        // A signal is as good as a moment passed.
        let _ = poll(&mut polled, time);
        let has_hung_up = |fd: &PollFd<'_>| {
            let events = fd.revents().unwrap_or(PollFlags::empty());
            events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR)
        };
        let is_over = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        match polled.as_slice() {
            [life, ..] if has_hung_up(life) => Waited::Stop,
            [life, ..] if is_over(life) => Waited::Changed,
            [_, program] if is_over(program) => Waited::Ended,
            _ => Waited::TimedOut,
        }
    }
}
