//! Scheduling attributes of a thread: priority and core affinity.
//!
//! Source: sched(7) of Linux. Threads of real-time policies run before all others of their core.
//! The others take turns, and their nice value determines the time slice.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::model::errno::Errno;

/// Maximum number of cores in a set.
const CORES_MAX: usize = insula_abi::NODE_CPUS_MAX;
const WORDS: usize = CORES_MAX / 64;

/// A set of cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreSet([u64; WORDS]);

impl CoreSet {
    /// The set of all cores.
    pub const ALL: Self = Self([u64::MAX; WORDS]);
    /// Size in a program's memory, in bytes.
    pub const SIZE: usize = CORES_MAX / 8;

    /// Decodes it from a program's memory.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        Self(core::array::from_fn(|word| {
            u64::from_le_bytes(core::array::from_fn(|at| bytes[8 * word + at]))
        }))
    }

    /// Encodes it for a program's memory.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        core::array::from_fn(|at| self.0[at / 8].to_le_bytes()[at % 8])
    }

    /// Returns a bit for each core.
    #[must_use]
    pub fn to_words(self) -> [u64; WORDS] {
        self.0
    }

    /// Whether a core is in the set.
    #[must_use]
    pub fn holds(&self, core: u32) -> bool {
        let word = self.0.get(core as usize / 64);
        word.is_some_and(|word| word >> (core % 64) & 1 != 0)
    }

    /// Returns the cores below a number.
    #[must_use]
    pub fn below(mut self, end: u32) -> Self {
        for (word, first) in self.0.iter_mut().zip((0..).step_by(64)) {
            let count = end.saturating_sub(first).min(64);
            *word &= u64::MAX.checked_shr(64 - count).unwrap_or(0);
        }
        self
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }
}

/// A set of cores that others may read while it changes: they then see some cores of the old set and
/// some of the new one.
#[derive(Debug)]
pub struct AtomicCoreSet([AtomicU64; WORDS]);

impl AtomicCoreSet {
    /// Creates it.
    #[must_use]
    pub fn new(set: CoreSet) -> Self {
        Self(set.0.map(AtomicU64::new))
    }

    /// Returns the set.
    #[must_use]
    pub fn load(&self) -> CoreSet {
        CoreSet(core::array::from_fn(|word| {
            self.0[word].load(Ordering::Relaxed)
        }))
    }

    /// Replaces the set.
    pub fn store(&self, set: CoreSet) {
        for (word, value) in self.0.iter().zip(set.0) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Whether a core is in the set.
    #[must_use]
    pub fn holds(&self, core: u32) -> bool {
        let word = self.0.get(core as usize / 64);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (core % 64) & 1 != 0)
    }
}

/// Scheduling policies.
pub mod policy {
    #![expect(missing_docs, reason = "they are the usual names")]
    pub const OTHER: u32 = 0;
    pub const FIFO: u32 = 1;
    pub const RR: u32 = 2;
    pub const BATCH: u32 = 3;
    pub const IDLE: u32 = 5;
    /// Flag: new threads get the default policy.
    pub const RESET_ON_FORK: u32 = 0x4000_0000;
}

/// Time slice at nice 0, and its bounds.
const SLICE_NS: u64 = 10_000_000;
const SLICE_MIN_NS: u64 = 500_000;
const SLICE_MAX_NS: u64 = 100_000_000;
/// Highest real-time priority; 1 is the lowest.
pub const REALTIME_MAX: u32 = 99;
/// Range of nice values.
pub const NICE: core::ops::RangeInclusive<i32> = -20..=19;

/// Scheduling policy and priorities of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Priority {
    /// One of [`policy`], without [`policy::RESET_ON_FORK`].
    policy: u32,
    realtime: u32,
    nice: i32,
    resets_on_fork: bool,
}

impl Priority {
    /// Changes the policy, with a priority of 1 to [`REALTIME_MAX`] for a real-time policy, else 0.
    ///
    /// # Errors
    /// [`Errno::EINVAL`].
    pub fn with_policy(self, given: u32, realtime: u32) -> Result<Self, Errno> {
        let policy = given & !policy::RESET_ON_FORK;
        let is_right = match policy {
            policy::FIFO | policy::RR => (1..=REALTIME_MAX).contains(&realtime),
            policy::OTHER | policy::BATCH | policy::IDLE => realtime == 0,
            _ => false,
        };
        is_right.then_some(()).ok_or(Errno::EINVAL)?;
        Ok(Self {
            policy,
            realtime,
            resets_on_fork: given & policy::RESET_ON_FORK != 0,
            ..self
        })
    }

    /// Changes the nice value, clamped to its range.
    #[must_use]
    pub fn with_nice(self, nice: i32) -> Self {
        let nice = nice.clamp(*NICE.start(), *NICE.end());
        Self { nice, ..self }
    }

    /// Returns the policy, with [`policy::RESET_ON_FORK`] if set.
    #[must_use]
    pub fn policy(&self) -> u32 {
        self.policy
            | if self.resets_on_fork {
                policy::RESET_ON_FORK
            } else {
                0
            }
    }

    /// Returns the real-time priority; 0 without a real-time policy.
    #[must_use]
    pub fn realtime(&self) -> u32 {
        self.realtime
    }

    /// Returns the nice value.
    #[must_use]
    pub fn nice(&self) -> i32 {
        self.nice
    }

    /// Returns what a new thread or child inherits.
    #[must_use]
    pub fn inherited(self) -> Self {
        match self.resets_on_fork {
            true => Self {
                nice: self.nice.max(0),
                ..Self::default()
            },
            false => self,
        }
    }

    /// Returns the priority boosted by a waiter of that real-time priority.
    #[must_use]
    pub fn boosted_to(self, realtime: u32) -> Self {
        match realtime > self.realtime {
            true => Self {
                policy: policy::FIFO,
                realtime,
                ..self
            },
            false => self,
        }
    }

    /// Whether it is higher than another.
    #[must_use]
    pub fn is_above(&self, other: &Self) -> bool {
        self.realtime > other.realtime
    }

    /// Whether its thread keeps the core although another is ready; `yields`: it called
    /// sched_yield(2).
    #[must_use]
    pub fn keeps_core(&self, other: &Self, yields: bool) -> bool {
        let is_fifo = self.policy == policy::FIFO && self.realtime == other.realtime;
        self.is_above(other) || is_fifo && !yields
    }

    /// Returns the time slice: a factor of 5/4 or 4/5 for each nice level.
    #[must_use]
    pub fn slice_ns(&self) -> u64 {
        if self.policy == policy::IDLE {
            return SLICE_MIN_NS;
        }
        let steps = 0..self.nice.unsigned_abs();
        let slice_ns = steps.fold(SLICE_NS, |slice_ns, _| match self.nice {
            ..0 => slice_ns * 5 / 4,
            _ => slice_ns * 4 / 5,
        });
        slice_ns.clamp(SLICE_MIN_NS, SLICE_MAX_NS)
    }

    /// Packs it into a word.
    #[must_use]
    pub fn to_word(self) -> u32 {
        let nice = (self.nice - NICE.start()) as u32;
        self.policy | self.realtime << 8 | nice << 16 | u32::from(self.resets_on_fork) << 24
    }

    /// Unpacks it from a word.
    #[must_use]
    pub fn from_word(word: u32) -> Self {
        Self {
            policy: word & 0xff,
            realtime: word >> 8 & 0xff,
            nice: (word >> 16 & 0xff) as i32 + NICE.start(),
            resets_on_fork: word >> 24 != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_encoded_as_on_linux() {
        let mut bytes = [0; CoreSet::SIZE];
        (bytes[0], bytes[8], bytes[31]) = (0b101, 1, 0x80);
        let set = CoreSet::from_bytes(&bytes);
        let held = (0..300).filter(|&core| set.holds(core));
        assert!(held.eq([0, 2, 64, 255]));
        assert_eq!(set.to_bytes(), bytes);
        let below = |end| (0..300).filter(|&core| set.below(end).holds(core)).count();
        assert_eq!([0, 1, 3, 64, 65, 256].map(below), [0, 1, 2, 2, 3, 4]);
        assert!(set.below(0).is_empty() && !set.below(1).is_empty());
    }

    #[test]
    fn policies_require_matching_priorities() {
        let with = |policy, realtime| Priority::default().with_policy(policy, realtime);
        for (policy, realtime) in [(0, 1), (1, 0), (2, 100), (4, 0), (6, 0), (7, 0)] {
            assert_eq!(
                with(policy, realtime),
                Err(Errno::EINVAL),
                "{policy} {realtime}"
            );
        }
        let fifo = with(policy::FIFO | policy::RESET_ON_FORK, 9)
            .unwrap()
            .with_nice(-30);
        assert_eq!(
            (fifo.policy(), fifo.realtime(), fifo.nice()),
            (0x4000_0001, 9, -20)
        );
        assert_eq!(Priority::from_word(fifo.to_word()), fifo);
        assert_eq!(
            Priority::from_word(Priority::default().to_word()),
            Priority::default()
        );
        assert_eq!(fifo.inherited(), Priority::default());
        assert_eq!(Priority::default().with_nice(3).inherited().nice(), 3);
    }

    #[test]
    fn a_boost_raises_the_priority() {
        let own = Priority::default().with_nice(5);
        let boosted = own.boosted_to(7);
        assert_eq!((boosted.policy(), boosted.realtime()), (policy::FIFO, 7));
        assert_eq!((boosted.boosted_to(3), own.boosted_to(0)), (boosted, own));
    }

    #[test]
    fn higher_priorities_keep_the_core_and_equal_ones_take_turns() {
        let with = |policy, realtime| Priority::default().with_policy(policy, realtime).unwrap();
        let (usual, low, high) = (Priority::default(), with(1, 1), with(2, 50));
        assert!(low.is_above(&usual) && high.is_above(&low) && !usual.is_above(&usual));
        assert!(high.keeps_core(&low, true) && !low.keeps_core(&high, false));
        assert!(low.keeps_core(&low, false) && !low.keeps_core(&low, true));
        assert!(!high.keeps_core(&high, false) && !usual.keeps_core(&usual, false));
    }

    #[test]
    fn nice_threads_have_shorter_slices() {
        let slice = |nice| Priority::default().with_nice(nice).slice_ns();
        assert_eq!([0, 1, -1].map(slice), [10_000_000, 8_000_000, 12_500_000]);
        assert!((-20..19).all(|nice| slice(nice) >= slice(nice + 1)));
        assert_eq!((slice(-20), slice(19)), (SLICE_MAX_NS, SLICE_MIN_NS));
    }
}
