//! What decides when and where a thread runs: its priority, and the cores that it may be on.
//!
//! Source: sched(7) of Linux. Threads of the real-time policies go before all others on their core; all
//! others share it by turns, whose length is what a nice value changes.

use super::errno::Errno;

/// Most cores that a set can hold.
const CORES_MAX: usize = insula_abi::NODE_CPUS_MAX;
const WORDS: usize = CORES_MAX / 64;

/// Some cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreSet([u64; WORDS]);

impl CoreSet {
    /// All that there can be.
    pub const ALL: Self = Self([u64::MAX; WORDS]);
    /// Bytes of it in a program's memory.
    pub const SIZE: usize = CORES_MAX / 8;

    /// From a program's memory.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        Self(core::array::from_fn(|word| {
            u64::from_le_bytes(core::array::from_fn(|at| bytes[8 * word + at]))
        }))
    }

    /// As it lies in a program's memory.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        core::array::from_fn(|at| self.0[at / 8].to_le_bytes()[at % 8])
    }

    /// Whether a core is one of them.
    #[must_use]
    pub fn holds(&self, core: u32) -> bool {
        let word = self.0.get(core as usize / 64);
        word.is_some_and(|word| word >> (core % 64) & 1 != 0)
    }

    /// Those below a number.
    #[must_use]
    pub fn below(mut self, end: u32) -> Self {
        for (word, first) in self.0.iter_mut().zip((0..).step_by(64)) {
            let count = end.saturating_sub(first).min(64);
            *word &= u64::MAX.checked_shr(64 - count).unwrap_or(0);
        }
        self
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }
}

/// `SCHED_OTHER` and so on.
pub mod policy {
    #![expect(missing_docs, reason = "they are the usual names")]
    pub const OTHER: u32 = 0;
    pub const FIFO: u32 = 1;
    pub const RR: u32 = 2;
    pub const BATCH: u32 = 3;
    pub const IDLE: u32 = 5;
    /// Set beside one of them: what the thread begins has none of this.
    pub const RESET_ON_FORK: u32 = 0x4000_0000;
}

/// How long a thread of the usual kind runs while others wait for the core.
const SLICE_NS: u64 = 10_000_000;
const SLICE_MIN_NS: u64 = 500_000;
const SLICE_MAX_NS: u64 = 100_000_000;
/// Highest real-time priority; 1 is the lowest.
pub const REALTIME_MAX: u32 = 99;
/// Least and greatest nice value.
pub const NICE: core::ops::RangeInclusive<i32> = -20..=19;

/// When a thread runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Priority {
    /// One of [`policy`], without [`policy::RESET_ON_FORK`].
    policy: u32,
    realtime: u32,
    nice: i32,
    resets: bool,
}

impl Priority {
    /// By that policy, with a priority of 1 to [`REALTIME_MAX`] if it is a real-time one, else 0.
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
            resets: given & policy::RESET_ON_FORK != 0,
            ..self
        })
    }

    /// With that nice value, or the nearest that there is.
    #[must_use]
    pub fn with_nice(self, nice: i32) -> Self {
        let nice = nice.clamp(*NICE.start(), *NICE.end());
        Self { nice, ..self }
    }

    /// Its policy, with [`policy::RESET_ON_FORK`] if that holds.
    #[must_use]
    pub fn policy(&self) -> u32 {
        self.policy
            | if self.resets {
                policy::RESET_ON_FORK
            } else {
                0
            }
    }

    /// Its real-time priority; 0 if it has none.
    #[must_use]
    pub fn realtime(&self) -> u32 {
        self.realtime
    }

    /// Its nice value.
    #[must_use]
    pub fn nice(&self) -> i32 {
        self.nice
    }

    /// What a thread begins with that one of this priority makes.
    #[must_use]
    pub fn inherited(self) -> Self {
        match self.resets {
            true => Self {
                nice: self.nice.max(0),
                ..Self::default()
            },
            false => self,
        }
    }

    /// As long as somebody of that real-time priority waits for what its thread holds.
    #[must_use]
    pub fn lifted_to(self, realtime: u32) -> Self {
        match realtime > self.realtime {
            true => Self {
                policy: policy::FIFO,
                realtime,
                ..self
            },
            false => self,
        }
    }

    /// Whether it goes before another.
    #[must_use]
    pub fn is_above(&self, other: &Self) -> bool {
        self.realtime > other.realtime
    }

    /// Whether its thread keeps the core though another is ready; `asks`: it wants others to run.
    #[must_use]
    pub fn keeps_core(&self, other: &Self, asks: bool) -> bool {
        let is_fifo = self.policy == policy::FIFO && self.realtime == other.realtime;
        self.is_above(other) || is_fifo && !asks
    }

    /// How long its thread runs while others like it wait: a quarter more or less for each step.
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

    /// As one word.
    #[must_use]
    pub fn to_word(self) -> u32 {
        let nice = (self.nice - NICE.start()) as u32;
        self.policy | self.realtime << 8 | nice << 16 | u32::from(self.resets) << 24
    }

    /// From such a word.
    #[must_use]
    pub fn from_word(word: u32) -> Self {
        Self {
            policy: word & 0xff,
            realtime: word >> 8 & 0xff,
            nice: (word >> 16 & 0xff) as i32 + NICE.start(),
            resets: word >> 24 != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_as_in_memory() {
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
    fn policies_have_their_priorities() {
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
    fn who_is_waited_for_is_as_urgent() {
        let own = Priority::default().with_nice(5);
        let lifted = own.lifted_to(7);
        assert_eq!((lifted.policy(), lifted.realtime()), (policy::FIFO, 7));
        assert_eq!((lifted.lifted_to(3), own.lifted_to(0)), (lifted, own));
    }

    #[test]
    fn the_higher_keeps_the_core_and_equals_take_turns() {
        let with = |policy, realtime| Priority::default().with_policy(policy, realtime).unwrap();
        let (usual, low, high) = (Priority::default(), with(1, 1), with(2, 50));
        assert!(low.is_above(&usual) && high.is_above(&low) && !usual.is_above(&usual));
        assert!(high.keeps_core(&low, true) && !low.keeps_core(&high, false));
        assert!(low.keeps_core(&low, false) && !low.keeps_core(&low, true));
        assert!(!high.keeps_core(&high, false) && !usual.keeps_core(&usual, false));
    }

    #[test]
    fn nice_threads_have_shorter_turns() {
        let slice = |nice| Priority::default().with_nice(nice).slice_ns();
        assert_eq!([0, 1, -1].map(slice), [10_000_000, 8_000_000, 12_500_000]);
        assert!((-20..19).all(|nice| slice(nice) >= slice(nice + 1)));
        assert_eq!((slice(-20), slice(19)), (SLICE_MAX_NS, SLICE_MIN_NS));
    }
}
