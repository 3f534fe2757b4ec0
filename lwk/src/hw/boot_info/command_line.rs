//! The command line. It is written for Linux; this kernel reads the options that concern it.

use alloc::string::String;
use alloc::vec::Vec;

use crate::hw::boot_info::bytes::{BadAddress, Reader};

/// Maximum length, as on Linux.
const SIZE_MAX: u64 = 2048;

/// The kernel's command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// The whole line.
    pub text: String,
}

impl CommandLine {
    pub(super) fn read(reader: &Reader, address: u64) -> Result<Self, BadAddress> {
        let mut bytes = Vec::new();
        for at in address..address + SIZE_MAX {
            match reader.u8(at)? {
                0 => break,
                byte => bytes.push(byte),
            }
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(Self { text })
    }

    /// Returns the value of an option; the last one counts.
    fn value(&self, name: &str) -> Option<&str> {
        let values = self.text.split_ascii_whitespace();
        let mut values = values.filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        values.next_back()
    }

    /// Whether the line contains a word without a value.
    #[must_use]
    pub fn has(&self, word: &str) -> bool {
        self.text.split_ascii_whitespace().any(|one| one == word)
    }

    fn number(&self, name: &str) -> Option<u32> {
        self.value(name)?.parse().ok()
    }

    /// Returns the frequency of the time stamp counter in kHz.
    #[must_use]
    pub fn tsc_khz(&self) -> Option<u32> {
        self.number("tsc_early_khz").filter(|&khz| khz > 0)
    }

    /// Returns the listed processors that exist and that the kernel starts with.
    pub(super) fn cores_of(&self, listed: &[u32]) -> Vec<u32> {
        let absent = self.number("disable_cpu_apicid");
        let most = self.number("maxcpus").unwrap_or(u32::MAX);
        let present = listed.iter().filter(|&&id| Some(id) != absent);
        present.take(most as usize).copied().collect()
    }
}
