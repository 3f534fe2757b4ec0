//! Kinds of findings.

use serde::{Deserialize, Serialize};

/// Kind of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The kernel panicked.
    Panic,
    /// The kernel had an oops: an exception of its own, after which it goes on.
    Oops,
    /// Code is not that of the image, nor a patch that the kernel makes itself.
    CodeChanged,
    /// A call that the kernel may patch leads to where no such call leads.
    CallRedirected,
    /// Read-only data is not that of the image: tables of system calls and of operations among it.
    ConstantsChanged,
    /// The table of interrupt handlers was changed.
    InterruptTableChanged,
    /// An operation of a file system or of the network leads to no code of the kernel or of a module.
    OperationRedirected,
    /// A task is in one list of the kernel and missing in another.
    TaskHidden,
    /// A module is in one list of the kernel and missing in another.
    ModuleHidden,
    /// A task has privileges that it cannot have got by itself.
    CredentialsChanged,
    /// A task waits without end, and cannot be interrupted.
    TaskHung,
    /// A task could run, and gets no turn.
    TaskStarved,
    /// A lock has an owner that has ended.
    LockOrphaned,
    /// Tasks wait for locks of each other.
    Deadlock,
    /// A processor does not leave the kernel for other tasks.
    SoftLockup,
    /// A processor takes no interrupts.
    HardLockup,
    /// A grace period of RCU does not end.
    RcuStall,
    /// Memory is used up.
    MemoryExhausted,
    /// The kernel's own objects take too large a part of the memory.
    SlabGrowth,
    /// The links of a list contradict each other.
    ListCorrupted,
    /// A check of the user's own has found something.
    Check,
    /// What a check needs cannot be read.
    Unreadable,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::Panic,
        Self::Oops,
        Self::CodeChanged,
        Self::CallRedirected,
        Self::ConstantsChanged,
        Self::InterruptTableChanged,
        Self::OperationRedirected,
        Self::TaskHidden,
        Self::ModuleHidden,
        Self::CredentialsChanged,
        Self::TaskHung,
        Self::TaskStarved,
        Self::LockOrphaned,
        Self::Deadlock,
        Self::SoftLockup,
        Self::HardLockup,
        Self::RcuStall,
        Self::MemoryExhausted,
        Self::SlabGrowth,
        Self::ListCorrupted,
        Self::Check,
        Self::Unreadable,
    ];

    /// Its name in rules and output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Panic => "panic",
            Self::Oops => "oops",
            Self::CodeChanged => "code-changed",
            Self::CallRedirected => "call-redirected",
            Self::ConstantsChanged => "constants-changed",
            Self::InterruptTableChanged => "interrupt-table-changed",
            Self::OperationRedirected => "operation-redirected",
            Self::TaskHidden => "task-hidden",
            Self::ModuleHidden => "module-hidden",
            Self::CredentialsChanged => "credentials-changed",
            Self::TaskHung => "task-hung",
            Self::TaskStarved => "task-starved",
            Self::LockOrphaned => "lock-orphaned",
            Self::Deadlock => "deadlock",
            Self::SoftLockup => "soft-lockup",
            Self::HardLockup => "hard-lockup",
            Self::RcuStall => "rcu-stall",
            Self::MemoryExhausted => "memory-exhausted",
            Self::SlabGrowth => "slab-growth",
            Self::ListCorrupted => "list-corrupted",
            Self::Check => "check",
            Self::Unreadable => "unreadable",
        }
    }

    /// Whether findings of this kind can be repaired, if they are certain.
    #[must_use]
    pub fn is_repairable(self) -> bool {
        matches!(
            self,
            Self::CodeChanged
                | Self::ConstantsChanged
                | Self::InterruptTableChanged
                | Self::TaskHidden
                | Self::LockOrphaned
                | Self::ListCorrupted
        )
    }
}
