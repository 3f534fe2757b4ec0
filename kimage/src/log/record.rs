//! A record of a kernel's log.

use serde::{Deserialize, Serialize};

/// Writer of a record: `printk_caller_id` of kernel/printk/printk.c.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Caller {
    /// The thread with this id.
    Thread(u32),
    /// This core, outside of any thread, for example in an interrupt.
    Cpu(u32),
}

impl Caller {
    /// Bit of `caller_id` that distinguishes a core from a thread.
    const IS_CPU: u32 = 1 << 31;

    pub(super) fn from_id(id: u32) -> Self {
        if id & Self::IS_CPU == 0 {
            Self::Thread(id)
        } else {
            Self::Cpu(id & !Self::IS_CPU)
        }
    }
}

/// A record of a kernel's log: `struct printk_info` and its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Record {
    /// Sequence number: 0 for the kernel's first record.
    pub seq: u64,
    /// Time on the kernel's own clock, in nanoseconds since its start.
    pub timestamp_ns: u64,
    /// Severity: from 0 (emergency) to 7 (debug), as in syslog.
    pub level: u8,
    /// Facility, as in syslog: 0 is the kernel.
    pub facility: u8,
    /// The writer.
    pub caller: Caller,
    /// The text; may have several lines, without a newline at the end. Control characters are kept;
    /// bytes that are not UTF-8 are replaced by U+FFFD.
    pub text: String,
}
