//! Marks: no-op instructions by which a program tells a plugin of the emulator (`bench/counter`)
//! what to count, and the plugin's counts.
//!
//! A mark is `nopl CODE(%rax,%rax,1)`, eight bytes with any 32 bits in them, a no-op on every
//! kernel. The code says what is counted and whether it starts or ends.

#![allow(unsafe_code)]

use std::arch::asm;

use serde::{Deserialize, Serialize};

/// Length of a mark, in bytes.
pub const MARK_BYTES: usize = 8;
/// `nopl` with a 32-bit displacement from two registers.
const OPERATION: [u8; 4] = [0x0f, 0x1f, 0x84, 0x00];
/// Upper half of all codes: "IN".
const OURS: u32 = 0x494e_0000;
const END: u32 = 0x100;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal, $word:literal;)+) => {
        /// Counted work, and where it is done.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Kind {
            $($(#[doc = $doc])+ $name = $number,)+
        }

        impl Kind {
            /// All.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The kind of that name.
            #[must_use]
            pub fn of(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$name),)+
                    _ => None,
                }
            }

            /// Its name on a command line.
            #[must_use]
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)+
                }
            }

            /// Marks the start.
            pub fn begin(self) {
                match self {
                    $(Self::$name => mark::<{ OURS | $number }>(),)+
                }
            }

            /// Marks the end.
            pub fn end(self) {
                match self {
                    $(Self::$name => mark::<{ OURS | END | $number }>(),)+
                }
            }
        }
    };
}

kinds! {
    /// A program that only computes, on an ordinary core of the base.
    SpinPlain = 1, "spin-plain";
    /// The same on an isolated core of the base.
    SpinIsolated = 2, "spin-isolated";
    /// The same on a node of the lightweight kernel.
    SpinLwk = 3, "spin-quiet";
    /// A call that does nothing, on the base.
    CallPlain = 4, "call-plain";
    /// The same, delegated by a node of the lightweight kernel.
    CallLwk = 5, "call-quiet";
    /// A read of a file, on the base.
    ReadPlain = 6, "read-plain";
    /// The same, delegated.
    ReadLwk = 7, "read-quiet";
    /// A call that the kernel of the program's core executes itself, on the base.
    OwnPlain = 8, "own-plain";
    /// The same on a node of the lightweight kernel.
    OwnLwk = 9, "own-quiet";
    /// A program that is started and waited for, on the base.
    StartPlain = 10, "start-plain";
    /// The same on a node of the lightweight kernel.
    StartLwk = 11, "start-quiet";
    /// A program on a new node of the lightweight kernel, to its end.
    NodeLwk = 12, "node-lwk";
    /// A new Linux node, to its init.
    NodeLinux = 13, "node-linux";
    /// Interrupts of a program on a core of the lightweight kernel's, each until that has handled it.
    InterruptNative = 14, "interrupt-native";
    /// The same of a program of the base, on a core that it shares.
    InterruptShared = 15, "interrupt-shared";
    /// The same by NMIs.
    InterruptNmi = 16, "interrupt-nmi";
    /// The same of a program of a confined node, on a core shared by its monitor.
    InterruptMonitor = 17, "interrupt-monitor";
    /// [`BLOCKS`](crate::blocks::COUNT) reads of blocks of a file.
    BlockReads = 18, "block-reads";
    /// The same, of which each tenth is a write.
    BlockMix = 19, "block-mix";
}

impl Kind {
    /// Whether its marks enclose many paths of another core, each of which is counted: from where that leaves its
    /// program, to a place in a kernel.
    #[must_use]
    pub fn is_of_paths(self) -> bool {
        let paths = Self::InterruptNative as u32..=Self::InterruptMonitor as u32;
        paths.contains(&(self as u32))
    }
}

#[inline(always)]
fn mark<const CODE: u32>() {
    // SAFETY: the instruction accesses and changes nothing. The compiler must not move marked code
    // over it, so it is not declared pure.
    unsafe {
        asm!(
            ".byte 0x0f, 0x1f, 0x84, 0x00",
            ".long {code}",
            code = const CODE,
            options(nostack, preserves_flags)
        );
    }
}

/// Edge of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// Start of the window.
    Begin,
    /// End of the window.
    End,
}

/// An executed mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Counted work.
    pub kind: Kind,
    /// Whether it starts or ends.
    pub edge: Edge,
}

impl Mark {
    /// Decodes an instruction, if it is a mark.
    #[must_use]
    pub fn of(instruction: [u8; MARK_BYTES]) -> Option<Self> {
        let code = instruction.strip_prefix(&OPERATION)?;
        Self::of_code(u32::from_le_bytes(code.try_into().ok()?))
    }

    /// The mark with that code.
    #[must_use]
    pub fn of_code(code: u32) -> Option<Self> {
        let mut all = Kind::ALL
            .iter()
            .flat_map(|&kind| [Edge::Begin, Edge::End].map(|edge| Self { kind, edge }));
        all.find(|mark| mark.code() == code)
    }

    /// Its 32-bit code.
    #[must_use]
    pub fn code(self) -> u32 {
        let end = match self.edge {
            Edge::Begin => 0,
            Edge::End => END,
        };
        OURS | end | self.kind as u32
    }
}

/// Counts of the core between two marks: one line of JSON of the plugin's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Counted work.
    pub kind: Kind,
    /// Instructions in user mode.
    pub user_instructions: u64,
    /// Instructions of the kernel.
    pub kernel_instructions: u64,
    /// Those among them of this project's kernels and its module.
    pub our_instructions: u64,
    /// Entries into the kernel, by calls, faults and interrupts.
    pub kernel_entries: u64,
    /// Instructions that all cores have executed meanwhile, and those that the emulator has translated:
    /// what is executed for the first time. Hardware does no such work.
    pub machine: Machine,
    /// Distinct cache lines of 64 bytes with code that the kernel executed; 0 if accesses are not
    /// recorded.
    pub code_lines: u64,
    /// Distinct cache lines that the kernel loaded or stored; 0 if accesses are not recorded.
    pub data_lines: u64,
}

/// Counts of a machine, whichever core, kernel or program they are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Executed instructions.
    pub executed: u64,
    /// Translated instructions.
    pub translated: u64,
    /// Executed instructions of each of its first cores.
    pub cores: [u64; CORES],
}

/// Cores of which each is counted.
pub const CORES: usize = 8;

impl Machine {
    /// Returns what has been added since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            executed: self.executed - before.executed,
            translated: self.translated - before.translated,
            cores: std::array::from_fn(|core| self.cores[core] - before.cores[core]),
        }
    }
}

/// Parses the plugin's output.
///
/// # Errors
/// When a line is not the plugin's.
pub fn parse(text: &str) -> Result<Vec<Count>, serde_json::Error> {
    text.lines().map(serde_json::from_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_distinct() {
        for &kind in Kind::ALL {
            assert_eq!(Kind::of(kind.word()), Some(kind));
            for edge in [Edge::Begin, Edge::End] {
                let mark = Mark { kind, edge };
                let mut bytes = [0; MARK_BYTES];
                bytes[..4].copy_from_slice(&OPERATION);
                bytes[4..].copy_from_slice(&mark.code().to_le_bytes());
                assert_eq!(Mark::of(bytes), Some(mark));
                bytes[0] ^= 1;
                assert_eq!(Mark::of(bytes), None);
            }
        }
        assert_eq!(Mark::of_code(OURS), None);
    }

    #[test]
    fn marks_are_no_ops() {
        for &kind in Kind::ALL {
            kind.begin();
            kind.end();
        }
    }
}
