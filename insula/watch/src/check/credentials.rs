//! Privileges that a task cannot have got by itself.

use super::{Check, Round};
use crate::finding::{Finding, Kind};
use crate::target::Place;
use crate::task::{Task, listed};
use kimage::running::RunningError;
use std::collections::HashMap;

/// `CAP_SETUID` of include/uapi/linux/capability.h.
const CAP_SETUID: u64 = 1 << 7;

/// Compares the credentials of each task with those at the last look. More privileges come from
/// executing a program (a set-user-id one, say), which the kernel counts, or from what the task was
/// permitted before. Those that a task only acts by for a while (`override_creds`, as in overlayfs) are not
/// its own.
#[derive(Debug, Default)]
pub(super) struct Credentials {
    /// By address and id of the task.
    last: HashMap<(u64, u32), State>,
}

/// What a task may do.
#[derive(Debug, Clone, PartialEq, Eq)]
struct State {
    /// When it was started.
    start: u64,
    /// Programs that it has executed.
    executed: u64,
    /// User ids: real, effective, saved.
    users: [u64; 3],
    effective: u64,
    permitted: u64,
    /// Its name space of users, to which all of that refers.
    namespace: u64,
}

impl Check for Credentials {
    fn name(&self) -> &'static str {
        "credentials"
    }

    fn look(&mut self, round: &Round<'_>) -> Result<Vec<Finding>, RunningError> {
        let kernel = round.target.kernel;
        let own = kernel.symbol("init_cred")?;
        let mut now = HashMap::new();
        let mut found = Vec::new();
        for place in listed(kernel)? {
            let task = Task::of(place)?;
            let Some(credentials) = place.follow("real_cred")? else {
                continue;
            };
            let is_process = place.number("mm")? != 0;
            let state = State::of(&place, &credentials)?;
            let key = (task.address, task.id);
            let before = self.last.get(&key);
            let detail = match before {
                _ if is_process && credentials.address() == own => {
                    Some("it has the kernel's own credentials".to_owned())
                }
                Some(before) => before.gain(&state),
                None => None,
            };
            let allowed = round.rules.allow.credentials_changed.contains(&task.name);
            match detail.filter(|_| !allowed) {
                // What it was before stays what it is compared with.
                Some(detail) => {
                    found.push(Finding::new(
                        Kind::CredentialsChanged,
                        task.subject(),
                        detail,
                    ));
                    now.insert(key, before.cloned().unwrap_or(state));
                }
                None => {
                    now.insert(key, state);
                }
            }
        }
        self.last = now;
        Ok(found)
    }
}

impl State {
    fn of(task: &Place<'_, '_>, credentials: &Place<'_, '_>) -> Result<Self, RunningError> {
        let number = |name| credentials.number(name);
        Ok(Self {
            start: task.number("start_boottime")?,
            executed: task.number("self_exec_id")?,
            users: [number("uid")?, number("euid")?, number("suid")?],
            effective: number("cap_effective")?,
            permitted: number("cap_permitted")?,
            namespace: number("user_ns")?,
        })
    }

    /// What the task has got since, without having executed a program or been permitted it.
    fn gain(&self, now: &Self) -> Option<String> {
        let is_same = self.start == now.start
            && self.executed == now.executed
            && self.namespace == now.namespace;
        if !is_same {
            return None;
        }
        let gained = now.effective & !self.permitted;
        if gained != 0 {
            return Some(format!("it got the capabilities {gained:#x}"));
        }
        let may = self.permitted & CAP_SETUID != 0 || self.users.contains(&now.users[1]);
        (!may).then(|| {
            let [before, after] = [self.users[1], now.users[1]];
            format!("its effective user changed from {before} to {after}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> State {
        State {
            start: 5,
            executed: 1,
            users: [1000; 3],
            effective: 0,
            permitted: 0,
            namespace: 7,
        }
    }

    #[test]
    fn privileges_do_not_fall_from_the_sky() {
        let mut root = user();
        root.users = [0; 3];
        assert!(user().gain(&root).unwrap().contains("from 1000 to 0"));
        root.executed = 2;
        assert_eq!(user().gain(&root), None);
        let mut capable = user();
        capable.effective = 1 << 21;
        assert!(user().gain(&capable).unwrap().contains("0x200000"));
        capable.namespace = 8;
        assert_eq!(user().gain(&capable), None);
    }

    #[test]
    fn who_may_change_may_change() {
        let mut able = user();
        able.permitted = CAP_SETUID;
        let mut other = able.clone();
        other.users = [1001; 3];
        assert_eq!(able.gain(&other), None);
        let mut saved = user();
        saved.users = [1000, 1000, 0];
        let mut back = saved.clone();
        back.users = [1000, 0, 0];
        assert_eq!(saved.gain(&back), None);
    }
}
