//! Privileges of processes, as the base's kernel shows them.

use std::fs;

use nix::unistd::Pid;

use crate::base::Finding;
use crate::base::support::insula_command::assert_equal;

/// Bits of capability sets, as in `linux/capability.h`.
pub(super) const CAP_DAC_OVERRIDE: u64 = 1 << 1;
pub(super) const CAP_DAC_READ_SEARCH: u64 = 1 << 2;
pub(super) const CAP_NET_BIND_SERVICE: u64 = 1 << 10;
pub(super) const CAP_NET_ADMIN: u64 = 1 << 12;
const CAP_SYS_MODULE: u64 = 1 << 16;
const CAP_SYS_RAWIO: u64 = 1 << 17;
const CAP_SYS_PTRACE: u64 = 1 << 19;
const CAP_SYS_BOOT: u64 = 1 << 22;
const CAP_SYS_TIME: u64 = 1 << 25;
const CAP_SYSLOG: u64 = 1 << 34;
const CAP_BPF: u64 = 1 << 39;

/// A set of capabilities.
#[derive(Clone, Copy)]
pub(super) struct Capabilities(pub u64);

impl Capabilities {
    /// Capabilities of a server of all users' files that sandboxes itself: many, but none over the
    /// kernel.
    pub(super) const OF_A_FILE_SERVER: Self = Self(
        !(CAP_SYS_MODULE
            | CAP_SYS_RAWIO
            | CAP_SYS_PTRACE
            | CAP_SYS_BOOT
            | CAP_SYS_TIME
            | CAP_SYSLOG
            | CAP_BPF),
    );
}

/// Fails unless the process has at most these capabilities, cannot gain more, and is refused system
/// calls that it does not need.
pub(super) fn assert_at_most(what: &str, pid: Pid, most: Capabilities) -> Result<(), Finding> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.map(|rest| rest.trim_start_matches(':').trim().to_owned())
            .ok_or_else(|| Finding::new(format!("{what}: no {key} in its status")))
    };
    for set in ["CapEff", "CapPrm"] {
        let has = u64::from_str_radix(&value(set)?, 16)?;
        assert_equal(
            &format!("{what}: {set} beyond {:#x}", most.0),
            &(has & !most.0),
            &0,
        )?;
    }
    assert_equal(
        &format!("{what}: no new privileges"),
        &value("NoNewPrivs")?.as_str(),
        &"1",
    )?;
    assert_equal(
        &format!("{what}: a filter of calls"),
        &value("Seccomp")?.as_str(),
        &"2",
    )
}
