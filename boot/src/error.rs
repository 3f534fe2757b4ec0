//! Why a node could not be laid out.

use crate::CommandLineError;
use thiserror::Error;

/// Why a node could not be laid out. Nothing has been written: to lay out is only to reckon.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// There is no processor to boot on.
    #[error("the node has no processor; give it at least one")]
    NoProcessor,
    /// A processor is in the lists more than once.
    #[error("the processor with APIC id {apic_id} is listed twice; list each once")]
    ProcessorTwice {
        /// Its local APIC id.
        apic_id: u32,
    },
    /// An id means all processors.
    #[error(
        "APIC id 0xffffffff is listed, which no processor has; list ids as the machine tells them"
    )]
    BroadcastProcessor,
    /// Linux would not find a processor by its id.
    #[error(
        "the processor with APIC id {apic_id} cannot be a Linux node's: ids from 255 on are reached in x2APIC mode \
         only, which Linux leaves in a node; choose other cores, for example with --cpu-list"
    )]
    FarProcessor {
        /// Its local APIC id.
        apic_id: u32,
    },
    /// The frequency of the time stamp counter is not known.
    #[error(
        "the frequency of the time stamp counter is not known, and a node cannot measure it; \
         use a machine whose kernel finds it (\"tsc: Detected\" in its log)"
    )]
    NoTscFrequency,
    /// The trampoline is not a page below 1 MiB.
    #[error("the page at {trampoline:#x} cannot be the trampoline: not a page below 1 MiB")]
    BadTrampoline {
        /// Its physical address.
        trampoline: u64,
    },
    /// A chunk is empty, not made of whole pages, or out of reach.
    #[error("the memory at {start:#x} ({size} bytes) is not made of whole pages below 64 TiB")]
    BadChunk {
        /// Its physical address.
        start: u64,
        /// Its size in bytes.
        size: u64,
    },
    /// Two chunks overlap.
    #[error("the stretches of memory at {first:#x} and {second:#x} overlap")]
    OverlappingChunks {
        /// Physical address of the lower one.
        first: u64,
        /// Physical address of the higher one.
        second: u64,
    },
    /// Below 1 MiB lies not exactly one chunk.
    #[error(
        "the node has {count} stretches of memory below 1 MiB and needs one, to start its processors in"
    )]
    LowChunks {
        /// How many there are.
        count: usize,
    },
    /// The chunk below 1 MiB does not serve.
    #[error(
        "the memory at {start:#x} ({size} bytes) cannot serve to start processors in: \
         36 KiB or more between 64 KiB and 640 KiB are needed"
    )]
    LowChunk {
        /// Its physical address.
        start: u64,
        /// Its size in bytes.
        size: u64,
    },
    /// What is known of the kernel does not hold together.
    #[error("the image's description of its kernel is damaged: {what}; add the image anew")]
    BadKernel {
        /// What is wrong, as a sentence.
        what: &'static str,
    },
    /// No chunk holds the kernel.
    #[error(
        "the kernel needs {} in one chunk, the largest that it can use has {}; ask for a larger --memory",
        mib_up(*needed), mib_down(*largest)
    )]
    KernelDoesNotFit {
        /// What it needs, in bytes.
        needed: u64,
        /// The most that there is at an address that suits it, in bytes.
        largest: u64,
    },
    /// No chunk holds the initrd.
    #[error(
        "the initrd needs {} in one chunk, beside the kernel the largest has {}; ask for a larger --memory",
        mib_up(*needed), mib_down(*largest)
    )]
    InitrdDoesNotFit {
        /// What it needs, in bytes.
        needed: u64,
        /// The most that there is, in bytes.
        largest: u64,
    },
    /// No chunk holds the tables.
    #[error(
        "the node's firmware tables need {} in one chunk, beside kernel and initrd; ask for a larger --memory",
        mib_up(*needed)
    )]
    FirmwareDoesNotFit {
        /// What they need, in bytes.
        needed: u64,
    },
    /// A PCI bus is listed more than once.
    #[error("PCI bus {segment:04x}:{number:02x} is listed twice; list each once")]
    BusTwice {
        /// Its segment group.
        segment: u16,
        /// Its number.
        number: u8,
    },
    /// What is told of a PCI bus cannot be.
    #[error(
        "PCI bus {segment:04x}:{number:02x} has addresses that are not whole pages, do not exist or are the \
         node's memory"
    )]
    BadBus {
        /// Its segment group.
        segment: u16,
        /// Its number.
        number: u8,
    },
    /// The command line was refused.
    #[error(transparent)]
    CommandLine(#[from] CommandLineError),
}

/// What is needed, rounded up.
fn mib_up(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

/// What there is, rounded down.
fn mib_down(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}
