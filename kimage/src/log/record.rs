//! One record of a kernel's log.

use serde::{Deserialize, Serialize};

/// Who wrote a record: `printk_caller_id` of kernel/printk/printk.c.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Caller {
    /// The thread with this id.
    Thread(u32),
    /// This core, outside of any thread: in an interrupt, say.
    Cpu(u32),
}

impl Caller {
    /// In `caller_id`, the bit that tells a core from a thread.
    const IS_CPU: u32 = 1 << 31;

    pub(super) fn from_id(id: u32) -> Self {
        if id & Self::IS_CPU == 0 {
            Self::Thread(id)
        } else {
            Self::Cpu(id & !Self::IS_CPU)
        }
    }
}

/// One record of a kernel's log: `struct printk_info` and its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Number: the kernel's first record is 0, each further one has one more.
    pub seq: u64,
    /// Time on the kernel's own clock, in nanoseconds since its start.
    pub timestamp_ns: u64,
    /// Urgency: from 0 (emergency) to 7 (debugging), as in syslog.
    pub level: u8,
    /// Where it comes from, as in syslog: 0 is the kernel.
    pub facility: u8,
    /// Who wrote it.
    pub caller: Caller,
    /// Text; may have several lines, without a newline at the end. Whatever the kernel wrote, control characters
    /// included; bytes that are no UTF-8 are replaced by U+FFFD.
    pub text: String,
}
