//! Why a base starts no nodes.

use insula_base::lockdown;
use insula_base::root::Root;
use insula_driver::CallError;
use nix::errno::Errno;

/// The calls that start nodes.
const CALLS: [&str; 3] = [
    "INSULA_NODE_CREATE",
    "INSULA_NODE_START",
    "INSULA_NODE_RECREATE",
];

/// Why a base starts no nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Forbidden {
    /// Its kernel is locked down (`man kernel_lockdown.7`).
    #[error("the base's kernel is locked down: it starts no unsigned kernels")]
    LockedDown,
    /// It is rebooting or powering off.
    #[error("the base is shutting down")]
    GoingDown,
}

impl Forbidden {
    /// The meaning of the module's error, if it is one of these.
    #[must_use]
    pub fn of(error: &CallError) -> Option<Self> {
        if !CALLS.contains(&error.call) {
            return None;
        }
        match error.errno {
            Errno::EPERM => Some(Self::LockedDown),
            Errno::ESHUTDOWN => Some(Self::GoingDown),
            _ => None,
        }
    }

    /// What the base itself shows, before any call.
    #[must_use]
    pub(super) fn by_base(root: &Root) -> Option<Self> {
        let mode = lockdown::mode(root).ok()?;
        (mode != lockdown::NONE).then_some(Self::LockedDown)
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(self) -> &'static str {
        match self {
            Self::LockedDown => {
                "boot the base without `lockdown=` on its command line, and with Secure Boot off; \
                 /sys/kernel/security/lockdown shows the present mode"
            }
            Self::GoingDown => "start it when the base is up again",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_starts_are_forbidden() {
        let of = |call, errno| Forbidden::of(&CallError { call, errno });
        for call in CALLS {
            assert_eq!(of(call, Errno::EPERM), Some(Forbidden::LockedDown));
            assert_eq!(of(call, Errno::ESHUTDOWN), Some(Forbidden::GoingDown));
            assert_eq!(of(call, Errno::EBUSY), None);
        }
        assert_eq!(of("INSULA_NODE_DEVICE_ADD", Errno::EPERM), None);
    }
}
