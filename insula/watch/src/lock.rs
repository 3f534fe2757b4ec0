//! Locks that tasks wait for: mutexes and read-write semaphores, which know who has them.
//!
//! Newer kernels note in a task which lock it waits for (include/linux/hung_task.h).
//!
//! In others it has an entry of the lock's list of waiters on its stack, in the frame of
//! the function that waits (kernel/locking/mutex.c, kernel/locking/rwsem.c). That entry points to the
//! task, and its links lead to the lock.

use crate::repair::Repair;
use crate::target::{Kernel, Place};
use crate::task::is_uninterruptible_or_killable;
use kimage::running::{RunningError, THREAD_SIZE};

/// Size of a word, in bytes.
const WORD: u64 = size_of::<u64>() as u64;
/// Limit on the waiters of a lock that are passed on the way to it.
const WAITERS_MAX: usize = 1 << 12;
/// Lower bits of an owner: flags of a mutex, and of a semaphore (`MUTEX_FLAGS` of kernel/locking/mutex.h,
/// `RWSEM_OWNER_FLAGS_MASK` of kernel/locking/rwsem.c).
const OWNER_FLAGS: u64 = 7;
/// `MUTEX_FLAG_WAITERS`: unlocking it wakes one.
const MUTEX_WAITERS: u64 = 1;
/// `RWSEM_WRITER_LOCKED`: else its owner may be any that has read.
const SEMAPHORE_WRITER: u64 = 1;

/// Lower bits of the note, which tell the kind of lock: a mutex, and a semaphore that is to be read, or written
/// (`BLOCKER_TYPE_MASK` and others of include/linux/hung_task.h).
const NOTED_KIND: u64 = 3;
const NOTED_MUTEX: u64 = 0;
const NOTED_SEMAPHORE: [u64; 2] = [2, 3];

/// A kind of lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Mutex,
    Semaphore,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Mutex, Self::Semaphore];

    /// Its name for a user; the structures of the lock and of an entry of its list of waiters.
    fn names(self) -> [&'static str; 3] {
        match self {
            Self::Mutex => ["mutex", "mutex", "mutex_waiter"],
            Self::Semaphore => ["read-write semaphore", "rw_semaphore", "rwsem_waiter"],
        }
    }

    /// Starts of the names of the functions that wait for it.
    fn functions(self) -> &'static [&'static str] {
        match self {
            Self::Mutex => &["__mutex_lock", "__ww_mutex_lock"],
            Self::Semaphore => &["rwsem_down_"],
        }
    }
}

/// A lock that a task waits for, and that another has.
#[derive(Debug, Clone)]
pub(crate) struct Lock {
    kind: Kind,
    /// Its address.
    pub(crate) address: u64,
    /// Address of the task that has it.
    pub(crate) owner: u64,
    /// Of each of its words that tells so: the address, what is there, and what is there when nobody
    /// has it.
    words: Vec<(u64, u64, u64)>,
}

impl Lock {
    /// The one that a task waits for; `None` if it waits for none, or nobody is known to have it.
    pub(crate) fn awaited(task: &Place<'_, '_>) -> Result<Option<Self>, RunningError> {
        if !is_uninterruptible_or_killable(task)? {
            return Ok(None);
        }
        if let Ok(noted) = task.number("blocker") {
            return Self::noted(task.kernel(), noted);
        }
        let Some(stack) = Stack::of(task)? else {
            return Ok(None);
        };
        for kind in Kind::ALL {
            if let Some(waiter) = stack.waiter(kind)? {
                return Self::with_waiter(task.kernel(), kind, waiter);
            }
        }
        Ok(None)
    }

    /// The one that a task's note says.
    fn noted(kernel: &Kernel<'_>, note: u64) -> Result<Option<Self>, RunningError> {
        let kind = match note & NOTED_KIND {
            _ if note == 0 => return Ok(None),
            NOTED_MUTEX => Kind::Mutex,
            kind if NOTED_SEMAPHORE.contains(&kind) => Kind::Semaphore,
            _ => return Ok(None),
        };
        Self::at(kernel, kind, note & !NOTED_KIND)
    }

    /// The one that has a list with an entry.
    fn with_waiter(
        kernel: &Kernel<'_>,
        kind: Kind,
        waiter: u64,
    ) -> Result<Option<Self>, RunningError> {
        let [_, structure, _] = kind.names();
        let offset = kernel.btf()?.offset_of(structure, "wait_list")?;
        let mut entry = waiter;
        for _ in 0..WAITERS_MAX {
            entry = kernel.word(entry)?;
            if entry == waiter {
                break;
            }
            if !is_waiter(kernel, kind, entry)? {
                return Self::at(kernel, kind, entry.wrapping_sub(offset));
            }
        }
        Ok(None)
    }

    /// The one at an address, if a task has it.
    fn at(kernel: &Kernel<'_>, kind: Kind, address: u64) -> Result<Option<Self>, RunningError> {
        let [_, structure, _] = kind.names();
        let lock = kernel.object(address, structure)?;
        let place = lock.member("owner")?;
        let value = place.value()?;
        let owner = value & !OWNER_FLAGS;
        let mut words = vec![(place.address(), value, 0)];
        match kind {
            Kind::Mutex => words[0].2 = value & MUTEX_WAITERS,
            Kind::Semaphore => {
                let count = lock.member("count")?;
                let value = count.value()?;
                if value & SEMAPHORE_WRITER == 0 {
                    return Ok(None);
                }
                words.push((count.address(), value, value & !SEMAPHORE_WRITER));
            }
        }
        Ok((owner != 0).then_some(Self {
            kind,
            address,
            owner,
            words,
        }))
    }

    /// In words: by its variable, or its address.
    pub(crate) fn describe(&self, kernel: &Kernel<'_>) -> String {
        let [kind, ..] = self.kind.names();
        match kernel.describe_data(self.address) {
            Some(name) => format!("the {kind} {}", name.trim_end_matches("+0x0")),
            None => format!("the {kind} at {:#x}", self.address),
        }
    }

    /// What has nobody have it. Waiters are woken when it is unlocked the next time.
    pub(crate) fn release(&self) -> Repair {
        Repair::of_words(&self.words)
    }
}

/// Whether a link is of a waiter, on the stack of the task that it points to; or of the lock.
fn is_waiter(kernel: &Kernel<'_>, kind: Kind, link: u64) -> Result<bool, RunningError> {
    let [.., waiter] = kind.names();
    let task = kernel.object(link, waiter)?.follow("task");
    // Behind a lock there can be anything.
    let stack = task.and_then(|task| task.map(|task| task.number("stack")).transpose());
    Ok(matches!(stack, Ok(Some(stack)) if (stack..stack.wrapping_add(THREAD_SIZE)).contains(&link)))
}

/// The stack of a task that does not run, from where it goes on.
struct Stack<'k, 'a> {
    kernel: &'k Kernel<'a>,
    task: u64,
    start: u64,
    words: Vec<u64>,
}

impl<'k, 'a> Stack<'k, 'a> {
    fn of(task: &Place<'k, 'a>) -> Result<Option<Self>, RunningError> {
        let whole = task.number("stack")?;
        let end = whole.wrapping_add(THREAD_SIZE);
        let start = task.number("thread.sp")?;
        if !(whole..end).contains(&start) || start % WORD != 0 {
            return Ok(None);
        }
        let mut bytes = vec![0; (end - start) as usize];
        task.kernel().read(start, &mut bytes)?;
        let words = bytes.as_chunks().0.iter();
        Ok(Some(Self {
            kernel: task.kernel(),
            task: task.address(),
            start,
            words: words.map(|word| u64::from_le_bytes(*word)).collect(),
        }))
    }

    /// Address of its entry of the list of waiters of a lock.
    fn waiter(&self, kind: Kind) -> Result<Option<u64>, RunningError> {
        let [.., waiter] = kind.names();
        let offset = self.kernel.btf()?.offset_of(waiter, "task")?;
        for (index, word) in self.words.iter().enumerate() {
            let address = (self.start + WORD * index as u64).wrapping_sub(offset);
            if *word == self.task && self.is_linked(address) && self.is_in(kind, address) {
                return Ok(Some(address));
            }
        }
        Ok(None)
    }

    /// Whether the entries before and after one point to it.
    fn is_linked(&self, entry: u64) -> bool {
        let word = |address: u64| self.kernel.word(address).ok();
        let next = word(entry).and_then(|next| word(next.wrapping_add(WORD)));
        let previous = word(entry.wrapping_add(WORD)).and_then(word);
        next == Some(entry) && previous == Some(entry)
    }

    /// Whether an address is in the frame of a function that waits for a lock: what that has called
    /// returns to it.
    fn is_in(&self, kind: Kind, address: u64) -> bool {
        let below = address.saturating_sub(self.start) / WORD;
        let is_of = |word: &u64| {
            let name = self.kernel.describe_code(*word).unwrap_or_default();
            let mut functions = kind.functions().iter();
            functions.any(|function| name.starts_with(function))
        };
        let image = self.kernel.image();
        let mut code = self.words.iter().take(below as usize).rev();
        code.any(|word| image.contains(word) && is_of(word))
    }
}
