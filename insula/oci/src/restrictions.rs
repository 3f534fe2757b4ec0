//! What a process is restricted by, as its configuration says it: the agent of the node restricts it so.

use insula_agent::restrictions::{Capabilities, LIMITS, Limit, Restrictions};
use insula_base::error::Error;

use super::config::{self, Process, Rlimit};

/// Names of capabilities, in the order of their numbers.
pub(super) const CAPABILITIES: [&str; 41] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];

/// Those of a process.
///
/// # Errors
/// A name that the kernel has nothing for.
pub(super) fn of(process: &Process) -> Result<Restrictions, Error> {
    let capabilities = process.capabilities.as_ref().map(sets);
    let limits: Result<_, _> = process.rlimits.iter().map(limit).collect();
    Ok(Restrictions {
        capabilities: capabilities.transpose()?,
        limits: limits?,
        no_new_privileges: process.no_new_privileges,
        oom_score_adj: process.oom_score_adj,
        umask: process.user.umask,
    })
}

fn sets(names: &config::Capabilities) -> Result<Capabilities, Error> {
    Ok(Capabilities {
        bounding: set(&names.bounding)?,
        effective: set(&names.effective)?,
        inheritable: set(&names.inheritable)?,
        permitted: set(&names.permitted)?,
        ambient: set(&names.ambient)?,
    })
}

fn set(names: &[String]) -> Result<u64, Error> {
    names.iter().try_fold(0, |set, name| {
        let number = CAPABILITIES.iter().position(|one| one == name);
        let number = number.ok_or_else(|| unknown("capability", name))?;
        Ok(set | 1 << number)
    })
}

fn limit(limit: &Rlimit) -> Result<Limit, Error> {
    match LIMITS.contains(&limit.kind.as_str()) {
        true => Ok(Limit {
            resource: limit.kind.clone(),
            soft: limit.soft,
            hard: limit.hard,
        }),
        false => Err(unknown("resource limit", &limit.kind)),
    }
}

fn unknown(what: &str, name: &str) -> Error {
    Error::new(format!("there is no {what} '{name}'")).untouched()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(process: Value) -> Result<Restrictions, Error> {
        of(&serde_json::from_value(process).unwrap())
    }

    #[test]
    fn what_is_not_said_is_not_restricted() {
        assert_eq!(found(json!({})).unwrap(), Restrictions::default());
    }

    #[test]
    fn restrictions_are_those_of_the_configuration() {
        let found = found(json!({
            "capabilities": {"bounding": ["CAP_CHOWN", "CAP_KILL"], "ambient": null},
            "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 10, "hard": 20}],
            "noNewPrivileges": true,
            "oomScoreAdj": -7,
            "user": {"umask": 18},
        }))
        .unwrap();
        let sets = found.capabilities.unwrap();
        assert_eq!((sets.bounding, sets.ambient), (0b10_0001, 0));
        let limit = &found.limits[0];
        assert_eq!((limit.soft, limit.hard), (10, 20));
        assert!(found.no_new_privileges);
        assert_eq!((found.oom_score_adj, found.umask), (Some(-7), Some(18)));
    }

    #[test]
    fn unknown_names_are_refused() {
        for (process, name) in [
            (json!({"capabilities": {"effective": ["CAP_X"]}}), "CAP_X"),
            (
                json!({"rlimits": [{"type": "RLIMIT_X", "soft": 1, "hard": 1}]}),
                "RLIMIT_X",
            ),
        ] {
            let error = found(process).unwrap_err();
            assert!(error.what.contains(name), "{error}");
        }
    }
}
