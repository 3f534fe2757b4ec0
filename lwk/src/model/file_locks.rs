//! Advisory locks of a file: ranges of bytes, each with an owner (fcntl_locking(2)). A lock of a whole
//! file (flock(2)) is one over all bytes.

use alloc::vec::Vec;

/// Who has a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// A process, by its number.
    Process(u64),
    /// An open file description, by its handle.
    Description(u64),
}

/// What a lock lets others do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Others can have it shared, too (`F_RDLCK`, `LOCK_SH`).
    Shared,
    /// Nobody else has any (`F_WRLCK`, `LOCK_EX`).
    Exclusive,
}

/// A lock of the bytes from `start` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLock {
    /// Who has it.
    pub owner: Owner,
    /// What others can have.
    pub kind: Kind,
    /// The first byte.
    pub start: u64,
    /// The last byte.
    pub last: u64,
}

impl FileLock {
    fn overlaps(&self, start: u64, last: u64) -> bool {
        self.start <= last && start <= self.last
    }

    /// Whether the other, of the same owner and kind, goes on where this one ends.
    fn is_followed_by(&self, other: &Self) -> bool {
        let same = self.owner == other.owner && self.kind == other.kind;
        same && self.last.checked_add(1) == Some(other.start)
    }
}

/// All locks of a file, by their start. Those of an owner do not overlap.
#[derive(Clone, Debug, Default)]
pub struct FileLocks(Vec<FileLock>);

impl FileLocks {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the first lock that keeps another from being set.
    #[must_use]
    pub fn conflict(&self, wanted: &FileLock) -> Option<FileLock> {
        let excludes = |found: &&FileLock| {
            found.owner != wanted.owner
                && found.overlaps(wanted.start, wanted.last)
                && (found.kind == Kind::Exclusive || wanted.kind == Kind::Exclusive)
        };
        self.0.iter().find(excludes).copied()
    }

    /// Sets a lock that nothing conflicts with, in place of what its owner has there.
    pub fn set(&mut self, wanted: FileLock) {
        self.unset(wanted.owner, wanted.start, wanted.last);
        self.insert(wanted);
        self.join();
    }

    /// Removes what an owner has of a range. Returns whether that was anything.
    pub fn unset(&mut self, owner: Owner, start: u64, last: u64) -> bool {
        let is_changed = |lock: &mut FileLock| lock.owner == owner && lock.overlaps(start, last);
        let changed: Vec<FileLock> = self.0.extract_if(.., is_changed).collect();
        for lock in &changed {
            if lock.start < start {
                self.insert(FileLock {
                    last: start - 1,
                    ..*lock
                });
            }
            if lock.last > last {
                self.insert(FileLock {
                    start: last + 1,
                    ..*lock
                });
            }
        }
        !changed.is_empty()
    }

    fn insert(&mut self, lock: FileLock) {
        let at = self.0.partition_point(|other| other.start <= lock.start);
        self.0.insert(at, lock);
    }

    /// Joins locks of an owner and kind that follow each other.
    fn join(&mut self) {
        let mut at = 0;
        while let Some(lock) = self.0.get(at).copied() {
            match self.0.iter().position(|other| lock.is_followed_by(other)) {
                Some(next) => self.0[at].last = self.0.remove(next).last,
                None => at += 1,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    const BYTES: u64 = 24;

    /// What each byte is locked by, as the simplest model has it.
    type Bytes = Vec<Vec<(Owner, Kind)>>;

    fn lock(owner: u64, kind: Kind, start: u64, last: u64) -> FileLock {
        FileLock {
            owner: Owner::Process(owner),
            kind,
            start,
            last,
        }
    }

    fn bytes_of(locks: &FileLocks) -> Bytes {
        let of_byte = |byte: u64| {
            let mut found: Vec<_> = locks
                .0
                .iter()
                .filter(|lock| lock.overlaps(byte, byte))
                .collect();
            found.sort_by_key(|lock| lock.owner);
            found.iter().map(|lock| (lock.owner, lock.kind)).collect()
        };
        (0..BYTES).map(of_byte).collect()
    }

    fn clear(bytes: &mut Bytes, owner: Owner, start: u64, last: u64) {
        let range = start as usize..=(last as usize).min(BYTES as usize - 1);
        bytes[range]
            .iter_mut()
            .for_each(|byte| byte.retain(|of| of.0 != owner));
    }

    /// A xorshift generator (Marsaglia, "Xorshift RNGs", 2003).
    fn next(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn each_byte_is_locked_as_was_asked() {
        let mut state = 0x9e37_79b9_7f4a_7c15;
        for _ in 0..2000 {
            let (mut locks, mut bytes) = (
                FileLocks::default(),
                Bytes::from(vec![vec![]; BYTES as usize]),
            );
            for _ in 0..40 {
                let mut number = |below: u64| next(&mut state) % below;
                let (start, owner) = (number(BYTES), number(3));
                let last = start + number(BYTES - start);
                let kind = [Kind::Shared, Kind::Exclusive][number(2) as usize];
                let wanted = lock(owner, kind, start, last);
                if number(3) == 0 {
                    let is_any = (start..=last)
                        .any(|byte| bytes[byte as usize].iter().any(|of| of.0 == wanted.owner));
                    assert_eq!(locks.unset(wanted.owner, start, last), is_any);
                    clear(&mut bytes, wanted.owner, start, last);
                } else {
                    let excludes = |of: &(Owner, Kind)| {
                        of.0 != wanted.owner && (of.1 == Kind::Exclusive || kind == Kind::Exclusive)
                    };
                    let is_free =
                        !(start..=last).any(|byte| bytes[byte as usize].iter().any(excludes));
                    assert_eq!(locks.conflict(&wanted).is_none(), is_free);
                    if is_free {
                        locks.set(wanted);
                        clear(&mut bytes, wanted.owner, start, last);
                        for byte in start..=last {
                            bytes[byte as usize].push((wanted.owner, kind));
                            bytes[byte as usize].sort_by_key(|of| of.0);
                        }
                    }
                }
                assert_eq!(bytes_of(&locks), bytes);
                let is_joined = |one: &FileLock| !locks.0.iter().any(|two| one.is_followed_by(two));
                assert!(locks.0.iter().all(is_joined), "{locks:?}");
            }
        }
    }

    #[test]
    fn a_lock_to_the_end_is_left_whole() {
        let mut locks = FileLocks::default();
        locks.set(lock(1, Kind::Shared, 0, u64::MAX));
        assert!(locks.conflict(&lock(2, Kind::Shared, 5, 5)).is_none());
        assert!(
            locks
                .conflict(&lock(2, Kind::Exclusive, 5, u64::MAX))
                .is_some()
        );
        assert!(locks.unset(Owner::Process(1), 10, u64::MAX));
        assert_eq!(locks.0, [lock(1, Kind::Shared, 0, 9)]);
        assert!(locks.unset(Owner::Process(1), 0, u64::MAX));
        assert!(locks.is_empty());
    }
}
