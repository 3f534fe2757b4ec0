//! Why a base starts no nodes.

use insula_base::error::Error;
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forbidden {
    /// Its kernel is locked down (`man kernel_lockdown.7`).
    LockedDown,
    /// It is rebooting or powering off.
    GoingDown,
}

/// The error if the module has refused a call because the base starts no nodes.
#[must_use]
pub(super) fn refusal(error: &CallError) -> Option<Error> {
    Forbidden::of(error).map(Forbidden::error)
}

/// Reads from the base's files whether it would refuse to start nodes. So a node that runs is not
/// stopped for a start that must fail.
///
/// # Errors
/// The refusal that a start would meet.
pub fn check_base(root: &Root) -> Result<(), Error> {
    let mode = lockdown::mode(root).unwrap_or_else(|_| lockdown::NONE.to_owned());
    match mode == lockdown::NONE {
        true => Ok(()),
        false => Err(Forbidden::LockedDown.error()),
    }
}

impl Forbidden {
    fn of(error: &CallError) -> Option<Self> {
        if !CALLS.contains(&error.call) {
            return None;
        }
        match error.errno {
            Errno::EPERM => Some(Self::LockedDown),
            Errno::ESHUTDOWN => Some(Self::GoingDown),
            _ => None,
        }
    }

    fn error(self) -> Error {
        match self {
            Self::LockedDown => {
                Error::new("the base's kernel is locked down: it starts no unsigned kernels").hint(
                    "boot the base without `lockdown=` on its command line, and with Secure Boot \
                     off; /sys/kernel/security/lockdown shows the present mode",
                )
            }
            Self::GoingDown => {
                Error::new("the base is shutting down").hint("start it when the base is up again")
            }
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
