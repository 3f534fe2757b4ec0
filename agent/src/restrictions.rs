//! What a program is restricted by, as a container's configuration says it (OCI runtime specification, `process`).

use serde::{Deserialize, Serialize};

/// Names of resource limits (setrlimit(2)).
pub const LIMITS: [&str; 16] = [
    "RLIMIT_CPU",
    "RLIMIT_FSIZE",
    "RLIMIT_DATA",
    "RLIMIT_STACK",
    "RLIMIT_CORE",
    "RLIMIT_RSS",
    "RLIMIT_NPROC",
    "RLIMIT_NOFILE",
    "RLIMIT_MEMLOCK",
    "RLIMIT_AS",
    "RLIMIT_LOCKS",
    "RLIMIT_SIGPENDING",
    "RLIMIT_MSGQUEUE",
    "RLIMIT_NICE",
    "RLIMIT_RTPRIO",
    "RLIMIT_RTTIME",
];

/// Restrictions of a program; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restrictions {
    /// Its capabilities, if they are not just those of its user.
    pub capabilities: Option<Capabilities>,
    /// Its resource limits.
    pub limits: Vec<Limit>,
    /// Whether no program that it executes gets more privileges.
    pub no_new_privileges: bool,
    /// How likely the kernel kills it when memory is short, from -1000 to 1000.
    pub oom_score_adj: Option<i32>,
    /// Permissions that new files do not have.
    pub umask: Option<u32>,
}

/// Sets of capabilities (capabilities(7)), with a bit for the number of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Those that any program can have.
    pub bounding: u64,
    /// Those that count now.
    pub effective: u64,
    /// Those that are kept when a program with the same in its file is executed.
    pub inheritable: u64,
    /// Those that may be made effective.
    pub permitted: u64,
    /// Those that are kept when any program is executed.
    pub ambient: u64,
}

/// A resource limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Its name, one of [`LIMITS`].
    pub resource: String,
    /// What counts; the largest number for no limit.
    pub soft: u64,
    /// To what that can be raised.
    pub hard: u64,
}
