//! Restart policy: decides what is done with a node that has stopped, without doing it.
//!
//! The policies are podman's and docker's: `no`, `on-failure[:N]`, `always`; the delay before a
//! restart doubles from 100 ms to a minute and is reset once a node has run for ten seconds. In
//! addition, as on a real machine, a node that reboots is started again whatever the policy, and so
//! is one that crashed with `panic=N` on its command line.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use insula_abi as abi;
use insula_base::serde_as_text;
use serde::{Deserialize, Serialize};

/// Delay before the first of several restarts.
const DELAY_MIN: Duration = Duration::from_millis(100);
/// Longest delay.
const DELAY_MAX: Duration = Duration::from_secs(60);
/// Run time after which a node counts as started successfully.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// How a node stopped by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It powered off, or halted.
    Off,
    /// It asked for a reset.
    Reset,
    /// Its kernel panicked.
    Crash {
        /// Whether it asked for a reset afterwards.
        asked_for_reset: bool,
    },
    /// It was unresponsive, and was stopped for that.
    Hang,
    /// A device that the base serves was lost, and it was stopped for that.
    DeviceLost,
    /// It was confined, and used what is not its own.
    Violation,
}

/// When a node that has stopped is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Restart {
    /// Never.
    #[default]
    No,
    /// When it crashed, hung or violated its isolation; at most that many times.
    OnFailure(Option<NonZeroU32>),
    /// Always, unless the user stopped it.
    Always,
}

/// Action on a node that is unresponsive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OnHang {
    /// Only show it as unresponsive.
    #[default]
    Ignore,
    /// Stop it: a failure, as a crash is; the restart policy decides about a restart.
    Stop,
    /// Stop it and start it again.
    Restart,
}

/// A node's policy, as its user set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// When it is started again.
    pub restart: Restart,
    /// Action when it hangs.
    pub on_hang: OnHang,
    /// Whether a node that asks for a reset is started again; else the reset counts as powering
    /// off.
    pub reboot: bool,
    /// The kernel's `panic=` as the user set it: seconds from a crash to a restart, at once if
    /// negative; 0 for none.
    pub panic_s: i32,
    /// Whether it is removed, with its memory and log, when it has stopped without failure.
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

/// State of a node's policy that is kept from one start to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// Number of restarts by the policy, reboots not counted.
    pub restarts: u32,
    /// Number of consecutive short runs.
    pub short_runs: u32,
}

/// What is done with a node that has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing.
    StayStopped,
    /// Start it again.
    Restart {
        /// The delay before it.
        after: Duration,
        /// The state to keep.
        history: History,
    },
}

impl Policy {
    /// Decides about a node that had `history` and stopped after running for `ran`.
    #[must_use]
    pub fn decide(&self, ending: Ending, ran: Duration, history: History) -> Decision {
        let short_runs = match ran < STABLE_AFTER {
            true => history.short_runs,
            false => 0,
        };
        let reboots = match ending {
            Ending::Reset => self.reboot,
            Ending::Crash { asked_for_reset } => {
                (asked_for_reset && self.reboot) || self.panic_s != 0
            }
            Ending::Off | Ending::Hang | Ending::DeviceLost | Ending::Violation => false,
        };
        let restarts = self.restarts_after(ending, history.restarts);
        if !reboots && !restarts {
            return Decision::StayStopped;
        }
        // As on a real machine, the first reboot is immediate.
        let after = match reboots && !restarts {
            true => short_runs.checked_sub(1).map_or(Duration::ZERO, delay),
            false => delay(short_runs),
        };
        Decision::Restart {
            after: after.max(self.panic_delay(ending)),
            history: History {
                restarts: history.restarts.saturating_add(u32::from(restarts)),
                short_runs: short_runs.saturating_add(1),
            },
        }
    }

    /// Reasons for stopping after which a node's cores are kept for its restart: a mask of
    /// [`abi::Reason::bit`].
    #[must_use]
    pub fn keep_cpus(&self) -> u32 {
        let bits = |reasons: &[abi::Reason]| reasons.iter().fold(0, |mask, one| mask | one.bit());
        let mut mask = match self.restart {
            Restart::No => 0,
            Restart::OnFailure(_) => bits(&[
                abi::Reason::CRASHED,
                abi::Reason::HUNG,
                abi::Reason::DEVICE_LOST,
                abi::Reason::VIOLATION,
            ]),
            Restart::Always => bits(&[
                abi::Reason::POWER_OFF,
                abi::Reason::HALTED,
                abi::Reason::RESET,
                abi::Reason::CRASHED,
                abi::Reason::HUNG,
                abi::Reason::DEVICE_LOST,
                abi::Reason::VIOLATION,
            ]),
        };
        // A kernel that has panicked may ask for a reset: that counts then.
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

    /// Whether a node that has stopped for this reason, and is not restarted, is removed. One that
    /// failed stays, for its log or a dump. So does one that stopped with the base.
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

    /// Whether the restart policy asks for a restart, after `restarts` earlier ones.
    fn restarts_after(&self, ending: Ending, restarts: u32) -> bool {
        let failed = matches!(
            ending,
            Ending::Crash { .. } | Ending::Hang | Ending::DeviceLost | Ending::Violation
        );
        match self.restart {
            _ if ending == Ending::Hang && self.on_hang == OnHang::Restart => true,
            // A reboot is not subject to the policy.
            _ if ending == Ending::Reset && self.reboot => false,
            Restart::No => false,
            Restart::OnFailure(most) => failed && most.is_none_or(|most| restarts < most.get()),
            Restart::Always => true,
        }
    }

    /// Delay by `panic=`, for which the user can see the crash.
    fn panic_delay(&self, ending: Ending) -> Duration {
        match ending {
            Ending::Crash { .. } => Duration::from_secs(self.panic_s.max(0).unsigned_abs().into()),
            _ => Duration::ZERO,
        }
    }
}

/// Delay after `attempts` failed attempts to start.
#[must_use]
pub fn retry_delay(attempts: u32) -> Duration {
    delay(attempts)
}

/// Delay after `short_runs` consecutive short runs.
fn delay(short_runs: u32) -> Duration {
    let factor = 1_u32.checked_shl(short_runs).unwrap_or(u32::MAX);
    DELAY_MIN.saturating_mul(factor).min(DELAY_MAX)
}

/// Text that is not a restart policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a restart policy: use no, on-failure, on-failure:N (N at least 1) or always")]
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

serde_as_text!(Restart, "^(no|on-failure(:[0-9]+)?|always)$");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CRASH: Ending = Ending::Crash {
        asked_for_reset: false,
    };
    const ENDINGS: [Ending; 6] = [
        Ending::Off,
        Ending::Reset,
        CRASH,
        Ending::Hang,
        Ending::DeviceLost,
        Ending::Violation,
    ];
    const SOON: Duration = Duration::from_secs(1);

    fn policy(words: &str) -> Policy {
        Policy {
            restart: words.parse().unwrap(),
            ..Policy::default()
        }
    }

    fn restarted(policy: &Policy) -> [bool; 6] {
        let decide = |ending| policy.decide(ending, SOON, History::default());
        ENDINGS.map(|ending| decide(ending) != Decision::StayStopped)
    }

    #[test]
    fn policies() {
        // Off, reset, crash, hang, lost device, violation. A reboot is not subject to the policy.
        assert_eq!(
            restarted(&policy("no")),
            [false, true, false, false, false, false]
        );
        assert_eq!(
            restarted(&policy("on-failure")),
            [false, true, true, true, true, true]
        );
        assert_eq!(restarted(&policy("always")), [true; 6]);
    }

    #[test]
    fn without_reboot_a_reset_counts_as_power_off() {
        let without = |words| Policy {
            reboot: false,
            ..policy(words)
        };
        assert_eq!(restarted(&without("no")), [false; 6]);
        assert_eq!(
            restarted(&without("on-failure")),
            [false, false, true, true, true, true]
        );
        assert_eq!(restarted(&without("always")), [true; 6]);
    }

    #[test]
    fn a_hang_is_handled_as_set() {
        let policy = Policy {
            on_hang: OnHang::Restart,
            ..Policy::default()
        };
        assert_eq!(restarted(&policy), [false, true, false, true, false, false]);
    }

    #[test]
    fn the_panic_option_is_honoured() {
        let policy = Policy {
            panic_s: 7,
            ..Policy::default()
        };
        let after = |history| match policy.decide(CRASH, SOON, history) {
            Decision::Restart { after, .. } => after,
            Decision::StayStopped => panic!("not restarted"),
        };
        assert_eq!(after(History::default()), Duration::from_secs(7));
        let often = History {
            restarts: 0,
            short_runs: 20,
        };
        assert_eq!(after(often), DELAY_MAX);
        let at_once = Policy {
            panic_s: -1,
            ..Policy::default()
        };
        assert_eq!(
            restarted(&at_once),
            [false, true, true, false, false, false]
        );
        // The kernel itself has obeyed a `panic=` that was set in the node.
        let crash = Ending::Crash {
            asked_for_reset: true,
        };
        assert_ne!(
            Policy::default().decide(crash, SOON, History::default()),
            Decision::StayStopped
        );
    }

    #[test]
    fn failures_are_counted_and_reboots_are_not() {
        let policy = policy("on-failure:2");
        let mut history = History::default();
        for _ in 0..2 {
            let Decision::Restart { history: after, .. } = policy.decide(CRASH, SOON, history)
            else {
                panic!("not restarted after {history:?}");
            };
            history = after;
            match policy.decide(Ending::Reset, SOON, history) {
                Decision::Restart { history: after, .. } => history = after,
                Decision::StayStopped => panic!("a reboot was not restarted"),
            }
        }
        assert_eq!(policy.decide(CRASH, SOON, history), Decision::StayStopped);
    }

    /// The delays before consecutive restarts.
    fn waits(policy: &Policy, ending: Ending, ran: Duration) -> Vec<u64> {
        let mut history = History::default();
        let mut waits = Vec::new();
        for _ in 0..12 {
            let Decision::Restart {
                after,
                history: next,
            } = policy.decide(ending, ran, history)
            else {
                break;
            };
            waits.push(u64::try_from(after.as_millis()).unwrap());
            history = next;
        }
        waits
    }

    #[test]
    fn the_delay_doubles_up_to_a_minute() {
        let doubling = [
            100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 51_200, 60_000, 60_000,
        ];
        assert_eq!(waits(&policy("always"), CRASH, SOON), doubling);
        let reboots = waits(&policy("no"), Ending::Reset, SOON);
        assert_eq!((reboots[0], &reboots[1..]), (0, &doubling[..11]));
    }

    #[test]
    fn a_long_run_resets_the_delay() {
        let waits = waits(&policy("always"), CRASH, STABLE_AFTER);
        assert_eq!(waits, [100; 12]);
    }

    #[test]
    fn failed_nodes_are_never_removed() {
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
            abi::Reason::VIOLATION,
            abi::Reason::BASE,
        ];
        assert!(!failed.into_iter().any(|reason| once.removes(reason)));
    }

    #[test]
    fn policies_as_text() {
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
        fn no_delay_is_longer_than_a_minute_or_the_panic_option(
            ran_ms in 0_u64..100_000,
            restarts in 0_u32..,
            short_runs in 0_u32..,
            panic_s in -5_i32..100,
        ) {
            let policy = Policy { panic_s, ..policy("always") };
            let history = History { restarts, short_runs };
            for ending in ENDINGS {
                let decision = policy.decide(ending, Duration::from_millis(ran_ms), history);
                let Decision::Restart { after, .. } = decision else { panic!("not restarted") };
                prop_assert!(after <= DELAY_MAX.max(Duration::from_secs(100)));
            }
        }
    }
}
