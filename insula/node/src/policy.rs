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
use insula_rules::{Action, Kind, Rules};
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
    /// Its watcher found what it is to be stopped for.
    Finding {
        /// Whether it is to be started again.
        restart: bool,
    },
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
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
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
    /// Whether it is started again when its watcher finds a panic.
    #[serde(default)]
    pub restart_on_panic: bool,
    /// Whether it is started again when its watcher finds certain other faults.
    #[serde(default)]
    pub restart_on_finding: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            restart: Restart::default(),
            on_hang: OnHang::default(),
            reboot: true,
            panic_s: 0,
            remove: false,
            restart_on_panic: false,
            restart_on_finding: false,
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
    /// The same for a node that is watched by these rules.
    #[must_use]
    pub fn watched(self, rules: Option<&Rules>) -> Self {
        let restarts = |kind: &Kind| {
            let action = rules.map(|rules| rules.action(*kind));
            action == Some(Action::Restart)
        };
        Self {
            restart_on_panic: restarts(&Kind::Panic),
            restart_on_finding: Kind::ALL.iter().any(restarts),
            ..self
        }
    }

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
            Ending::Off
            | Ending::Hang
            | Ending::DeviceLost
            | Ending::Violation
            | Ending::Finding { .. } => false,
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
                abi::Reason::FINDING,
            ]),
            Restart::Always => bits(&[
                abi::Reason::POWER_OFF,
                abi::Reason::HALTED,
                abi::Reason::RESET,
                abi::Reason::CRASHED,
                abi::Reason::HUNG,
                abi::Reason::DEVICE_LOST,
                abi::Reason::VIOLATION,
                abi::Reason::FINDING,
            ]),
        };
        // A kernel that has panicked may ask for a reset: that counts then.
        if self.reboot || mask != 0 {
            mask |= abi::Reason::RESET.bit();
        }
        if self.panic_s != 0 || self.restart_on_panic {
            mask |= abi::Reason::CRASHED.bit();
        }
        if self.restart_on_finding {
            mask |= abi::Reason::FINDING.bit();
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
            Ending::Crash { .. }
                | Ending::Hang
                | Ending::DeviceLost
                | Ending::Violation
                | Ending::Finding { .. }
        );
        match self.restart {
            _ if ending == Ending::Hang && self.on_hang == OnHang::Restart => true,
            _ if ending == Ending::Finding { restart: true } => true,
            _ if matches!(ending, Ending::Crash { .. }) && self.restart_on_panic => true,
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
mod tests;
