//! What becomes of a node that has ended: asked for by its user, judged without touching anything.
//!
//! The words are podman's and docker's: `no`, `on-failure[:N]`, `always`; the wait before a restart
//! doubles from 100 ms to a minute and begins anew once a node has run for ten seconds. On top of
//! that, what a machine would do by itself: a node that reboots is started again whatever the
//! policy, and so is one that crashed with `panic=N` on its command line.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use insula_abi as abi;
use serde::{Deserialize, Serialize};

/// Wait before the first of several restarts.
const DELAY_MIN: Duration = Duration::from_millis(100);
/// Longest wait.
const DELAY_MAX: Duration = Duration::from_secs(60);
/// A node that has run for so long has not failed to start.
const SETTLED_AFTER: Duration = Duration::from_secs(10);

/// How a node came to its end, by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It switched itself off, or halted.
    Off,
    /// It asked for a reset.
    Reset,
    /// Its kernel has panicked.
    Crash {
        /// It asked for a reset afterwards.
        asked_for_reset: bool,
    },
    /// It was unresponsive, and stopped for that.
    Hang,
    /// A device that the base serves was lost, and it was stopped for that.
    DeviceLost,
}

/// When a node that has ended is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Restart {
    /// Not.
    #[default]
    No,
    /// When it crashed or hung; at most so many times.
    OnFailure(Option<NonZeroU32>),
    /// However it ended, unless the user ended it.
    Always,
}

/// What is done with a node that is unresponsive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OnHang {
    /// It is shown as such.
    #[default]
    Ignore,
    /// It is stopped: a failure, as a crash is.
    Stop,
    /// It is stopped and started again.
    Restart,
}

/// What a node's user wants to become of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// When it is started again.
    pub restart: Restart,
    /// What is done when it hangs.
    pub on_hang: OnHang,
    /// Whether a node that asks for a reset gets it; else that ends it as switching itself off does.
    pub reboot: bool,
    /// The user's `panic=` for the kernel: seconds from a crash to a restart, at once if negative;
    /// 0 for none.
    pub panic_s: i32,
    /// Whether it is removed, and its memory with its log given back, when it has ended in order.
    #[serde(default)]
    pub remove: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            restart: Restart::default(),
            on_hang: OnHang::default(),
            reboot: true,
            panic_s: 0,
            remove: false,
        }
    }
}

/// What is remembered from one start of a node to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// Restarts after failures and other ends, reboots not counted.
    pub restarts: u32,
    /// Starts in a row after each of which it soon ended.
    pub quick: u32,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: it has ended.
    Leave,
    /// Start it again.
    Restart {
        /// After waiting so long.
        after: Duration,
        /// To be remembered with it.
        history: History,
    },
}

impl Policy {
    /// Judges the end of a node that had `history` and has run for `ran` since its last start.
    #[must_use]
    pub fn judge(&self, ending: Ending, ran: Duration, history: History) -> Verdict {
        let quick = match ran < SETTLED_AFTER {
            true => history.quick,
            false => 0,
        };
        let reboots = match ending {
            Ending::Reset => self.reboot,
            Ending::Crash { asked_for_reset } => {
                (asked_for_reset && self.reboot) || self.panic_s != 0
            }
            Ending::Off | Ending::Hang | Ending::DeviceLost => false,
        };
        let restarts = self.restarts_after(ending, history.restarts);
        if !reboots && !restarts {
            return Verdict::Leave;
        }
        // As a machine does, the first time a node reboots at once.
        let after = match reboots && !restarts {
            true => quick.checked_sub(1).map_or(Duration::ZERO, delay),
            false => delay(quick),
        };
        Verdict::Restart {
            after: after.max(self.wait_wished(ending)),
            history: History {
                restarts: history.restarts.saturating_add(u32::from(restarts)),
                quick: quick.saturating_add(1),
            },
        }
    }

    /// Ends after which a node's cores are worth keeping for it: a mask of [`abi::Reason::bit`].
    #[must_use]
    pub fn hold(&self) -> u32 {
        let bits = |reasons: &[abi::Reason]| reasons.iter().fold(0, |mask, one| mask | one.bit());
        let mut mask = match self.restart {
            Restart::No => 0,
            Restart::OnFailure(_) => bits(&[
                abi::Reason::CRASHED,
                abi::Reason::HUNG,
                abi::Reason::DEVICE_LOST,
            ]),
            Restart::Always => bits(&[
                abi::Reason::POWER_OFF,
                abi::Reason::HALTED,
                abi::Reason::RESET,
                abi::Reason::CRASHED,
                abi::Reason::HUNG,
                abi::Reason::DEVICE_LOST,
            ]),
        };
        // A kernel may ask for a reset because it has panicked: then that counts.
        if self.reboot || mask != 0 {
            mask |= abi::Reason::RESET.bit();
        }
        if self.panic_s != 0 {
            mask |= abi::Reason::CRASHED.bit();
        }
        if self.on_hang == OnHang::Restart {
            mask |= abi::Reason::HUNG.bit();
        }
        mask
    }

    /// Whether a node that has ended for this reason, and is not started again, is removed. One that
    /// failed stays: its log, or a dump, tells why. So does one that ended with the base.
    #[must_use]
    pub fn removes(&self, reason: abi::Reason) -> bool {
        let in_order = [
            abi::Reason::POWER_OFF,
            abi::Reason::HALTED,
            abi::Reason::RESET,
            abi::Reason::STOPPED,
            abi::Reason::KILLED,
        ];
        self.remove && in_order.contains(&reason)
    }

    /// Whether the restart policy itself asks for a start, after `restarts` that it has asked for.
    fn restarts_after(&self, ending: Ending, restarts: u32) -> bool {
        let failed = matches!(
            ending,
            Ending::Crash { .. } | Ending::Hang | Ending::DeviceLost
        );
        match self.restart {
            _ if ending == Ending::Hang && self.on_hang == OnHang::Restart => true,
            // A reboot is none of its business.
            _ if ending == Ending::Reset && self.reboot => false,
            Restart::No => false,
            Restart::OnFailure(most) => failed && most.is_none_or(|most| restarts < most.get()),
            Restart::Always => true,
        }
    }

    /// How long the user wants a crash to be seen.
    fn wait_wished(&self, ending: Ending) -> Duration {
        match ending {
            Ending::Crash { .. } => Duration::from_secs(self.panic_s.max(0).unsigned_abs().into()),
            _ => Duration::ZERO,
        }
    }
}

/// The wait after `attempts` at a start that could not be made at all, before the next.
#[must_use]
pub fn pause(attempts: u32) -> Duration {
    delay(attempts)
}

/// The wait after `quick` starts in a row that came to nothing.
fn delay(quick: u32) -> Duration {
    let factor = 1_u32.checked_shl(quick).unwrap_or(u32::MAX);
    DELAY_MIN.saturating_mul(factor).min(DELAY_MAX)
}

/// Words that are no restart policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no restart policy: write no, on-failure, on-failure:N (N from 1 on) or always")]
pub struct RestartError(String);

impl FromStr for Restart {
    type Err = RestartError;

    fn from_str(text: &str) -> Result<Self, RestartError> {
        let refused = || RestartError(text.to_owned());
        match text.split_once(':') {
            None if text == "no" => Ok(Self::No),
            None if text == "always" => Ok(Self::Always),
            None if text == "on-failure" => Ok(Self::OnFailure(None)),
            Some(("on-failure", most)) => {
                let most = most.parse().map_err(|_| refused())?;
                Ok(Self::OnFailure(Some(most)))
            }
            _ => Err(refused()),
        }
    }
}

impl fmt::Display for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::No => f.write_str("no"),
            Self::OnFailure(None) => f.write_str("on-failure"),
            Self::OnFailure(Some(most)) => write!(f, "on-failure:{most}"),
            Self::Always => f.write_str("always"),
        }
    }
}

impl From<Restart> for String {
    fn from(restart: Restart) -> Self {
        restart.to_string()
    }
}

impl TryFrom<String> for Restart {
    type Error = RestartError;

    fn try_from(text: String) -> Result<Self, RestartError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CRASH: Ending = Ending::Crash {
        asked_for_reset: false,
    };
    const ENDINGS: [Ending; 5] = [
        Ending::Off,
        Ending::Reset,
        CRASH,
        Ending::Hang,
        Ending::DeviceLost,
    ];
    const SOON: Duration = Duration::from_secs(1);

    fn policy(words: &str) -> Policy {
        Policy {
            restart: words.parse().unwrap(),
            ..Policy::default()
        }
    }

    fn restarted(policy: &Policy) -> [bool; 5] {
        let judge = |ending| policy.judge(ending, SOON, History::default());
        ENDINGS.map(|ending| judge(ending) != Verdict::Leave)
    }

    #[test]
    fn policies() {
        // Off, reset, crash, hang, lost device. A reboot is none of a policy's business.
        assert_eq!(restarted(&policy("no")), [false, true, false, false, false]);
        assert_eq!(
            restarted(&policy("on-failure")),
            [false, true, true, true, true]
        );
        assert_eq!(restarted(&policy("always")), [true; 5]);
    }

    #[test]
    fn without_reboot_a_reset_is_an_end_like_any() {
        let without = |words| Policy {
            reboot: false,
            ..policy(words)
        };
        assert_eq!(restarted(&without("no")), [false; 5]);
        assert_eq!(
            restarted(&without("on-failure")),
            [false, false, true, true, true]
        );
        assert_eq!(restarted(&without("always")), [true; 5]);
    }

    #[test]
    fn a_hang_is_acted_upon_as_asked() {
        let policy = Policy {
            on_hang: OnHang::Restart,
            ..Policy::default()
        };
        assert_eq!(restarted(&policy), [false, true, false, true, false]);
    }

    #[test]
    fn panic_is_honoured() {
        let policy = Policy {
            panic_s: 7,
            ..Policy::default()
        };
        let after = |history| match policy.judge(CRASH, SOON, history) {
            Verdict::Restart { after, .. } => after,
            Verdict::Leave => panic!("left"),
        };
        assert_eq!(after(History::default()), Duration::from_secs(7));
        let often = History {
            restarts: 0,
            quick: 20,
        };
        assert_eq!(after(often), DELAY_MAX);
        let at_once = Policy {
            panic_s: -1,
            ..Policy::default()
        };
        assert_eq!(restarted(&at_once), [false, true, true, false, false]);
        // The kernel itself has obeyed a wish that was made in the node.
        let crash = Ending::Crash {
            asked_for_reset: true,
        };
        assert_ne!(
            Policy::default().judge(crash, SOON, History::default()),
            Verdict::Leave
        );
    }

    #[test]
    fn failures_are_counted_and_reboots_are_not() {
        let policy = policy("on-failure:2");
        let mut history = History::default();
        for _ in 0..2 {
            let Verdict::Restart { history: after, .. } = policy.judge(CRASH, SOON, history) else {
                panic!("left after {history:?}");
            };
            history = after;
            match policy.judge(Ending::Reset, SOON, history) {
                Verdict::Restart { history: after, .. } => history = after,
                Verdict::Leave => panic!("a reboot was left"),
            }
        }
        assert_eq!(policy.judge(CRASH, SOON, history), Verdict::Leave);
    }

    /// The waits before restarts in a row.
    fn waits(policy: &Policy, ending: Ending, ran: Duration) -> Vec<u64> {
        let mut history = History::default();
        let mut waits = Vec::new();
        for _ in 0..12 {
            let Verdict::Restart {
                after,
                history: next,
            } = policy.judge(ending, ran, history)
            else {
                break;
            };
            waits.push(u64::try_from(after.as_millis()).unwrap());
            history = next;
        }
        waits
    }

    #[test]
    fn the_wait_doubles_up_to_a_minute() {
        let doubling = [
            100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 51_200, 60_000, 60_000,
        ];
        assert_eq!(waits(&policy("always"), CRASH, SOON), doubling);
        let reboots = waits(&policy("no"), Ending::Reset, SOON);
        assert_eq!((reboots[0], &reboots[1..]), (0, &doubling[..11]));
    }

    #[test]
    fn a_node_that_has_run_for_long_is_not_made_to_wait() {
        let waits = waits(&policy("always"), CRASH, SETTLED_AFTER);
        assert_eq!(waits, [100; 12]);
    }

    #[test]
    fn what_failed_is_never_removed() {
        let once = Policy {
            remove: true,
            ..Policy::default()
        };
        for in_order in [abi::Reason::POWER_OFF, abi::Reason::KILLED] {
            assert!(once.removes(in_order) && !Policy::default().removes(in_order));
        }
        let failed = [
            abi::Reason::CRASHED,
            abi::Reason::HUNG,
            abi::Reason::DEVICE_LOST,
            abi::Reason::BASE,
        ];
        assert!(!failed.into_iter().any(|reason| once.removes(reason)));
    }

    #[test]
    fn words() {
        for words in ["no", "on-failure", "on-failure:3", "always"] {
            let policy: Restart = words.parse().unwrap();
            assert_eq!(policy.to_string(), words);
            let json = serde_json::to_string(&policy).unwrap();
            assert_eq!(serde_json::from_str::<Restart>(&json).unwrap(), policy);
        }
        for words in [
            "",
            "yes",
            "always:2",
            "on-failure:",
            "on-failure:0",
            "on-failure:-1",
        ] {
            assert!(words.parse::<Restart>().is_err(), "{words}");
        }
    }

    proptest! {
        #[test]
        fn no_wait_is_longer_than_a_minute_or_the_wish(
            ran_ms in 0_u64..100_000, restarts in 0_u32.., quick in 0_u32.., panic_s in -5_i32..100,
        ) {
            let policy = Policy { panic_s, ..policy("always") };
            let history = History { restarts, quick };
            for ending in ENDINGS {
                let verdict = policy.judge(ending, Duration::from_millis(ran_ms), history);
                let Verdict::Restart { after, .. } = verdict else { panic!("left") };
                prop_assert!(after <= DELAY_MAX.max(Duration::from_secs(100)));
            }
        }
    }
}
