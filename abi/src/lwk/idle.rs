//! For how long a core of an LWK idles, in one word: so that who reads it meanwhile counts nothing twice.

use super::Core;

/// `INSULA_LWK_CORE_IDLE`, of [`Core::idle_ticks`]: it idles.
pub const CORE_IDLE: u64 = 1 << 62;

impl Core {
    /// Has [`idle_ticks`](Self::idle_ticks) say that it idles from this value of the time stamp counter on.
    #[must_use]
    pub const fn begun_to_idle(idle_ticks: u64, tsc: u64) -> u64 {
        (idle_ticks.wrapping_sub(tsc) & (CORE_IDLE - 1)) | CORE_IDLE
    }

    /// Has it say that it idles no longer, if it has said that it does: a core may have begun before it had where to say so.
    #[must_use]
    pub const fn ended_to_idle(idle_ticks: u64, tsc: u64) -> u64 {
        match idle_ticks & CORE_IDLE {
            0 => idle_ticks,
            _ => idle_ticks.wrapping_add(tsc) & (CORE_IDLE - 1),
        }
    }

    /// For how long it has worked, in ticks of the time stamp counter, at this value of that.
    #[must_use]
    pub const fn busy_ticks(&self, tsc: u64) -> u64 {
        let idle_ticks = Self::ended_to_idle(self.idle_ticks, tsc);
        match self.up_since {
            0 => 0,
            since => tsc.saturating_sub(since).saturating_sub(idle_ticks),
        }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn a_core_works_when_it_does_not_idle() {
        let mut core = Core::new_zeroed();
        assert_eq!(core.busy_ticks(1000), 0, "it is not up");
        core.up_since = 100;
        // It idled before that could be told.
        core.idle_ticks = Core::ended_to_idle(core.idle_ticks, 120);
        assert_eq!(core.busy_ticks(150), 50);
        core.idle_ticks = Core::begun_to_idle(core.idle_ticks, 150);
        assert_eq!([150, 151, 900].map(|tsc| core.busy_ticks(tsc)), [50; 3]);
        core.idle_ticks = Core::ended_to_idle(core.idle_ticks, 900);
        assert_eq!((core.idle_ticks, core.busy_ticks(910)), (750, 60));
        core.idle_ticks = Core::begun_to_idle(core.idle_ticks, 910);
        assert_eq!(core.busy_ticks(2000), 60);
    }

    #[test]
    fn whatever_a_node_writes_is_a_time() {
        for idle_ticks in [0, 1, CORE_IDLE - 1, CORE_IDLE, u64::MAX] {
            for up_since in [0, 1, u64::MAX] {
                let core = Core {
                    up_since,
                    idle_ticks,
                    ..Core::new_zeroed()
                };
                assert!(core.busy_ticks(1 << 40) <= 1 << 40);
            }
        }
    }
}
