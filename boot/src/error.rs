//! Why a node could not be laid out.

use crate::CommandLineError;
use insula_abi::monitor::MONITOR_FUNCTIONS;
use thiserror::Error;

/// Why a node could not be laid out. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// There are no processors.
    #[error("the node has no processor; give it at least one")]
    NoProcessor,
    /// A processor is listed twice.
    #[error("the processor with APIC id {apic_id} is listed twice; list each once")]
    DuplicateProcessor {
        /// Its local APIC id.
        apic_id: u32,
    },
    /// An id is the broadcast id.
    #[error(
        "APIC id 0xffffffff is listed, which means broadcast; list ids as the machine reports them"
    )]
    BroadcastProcessor,
    /// Linux does not support the processor's id in a node.
    #[error(
        "the processor with APIC id {apic_id} cannot be used by a Linux node: ids from 255 on need \
         x2APIC mode, which Linux disables in a node; choose other cores, for example with \
         --cpu-list"
    )]
    UnsupportedProcessor {
        /// Its local APIC id.
        apic_id: u32,
    },
    /// The frequency of the time stamp counter is not known.
    #[error(
        "the frequency of the time stamp counter is not known, and a node cannot measure it; \
         use a machine whose kernel detects it (\"tsc: Detected\" in its log)"
    )]
    NoTscFrequency,
    /// The trampoline is not a page below 1 MiB.
    #[error("the trampoline at {trampoline:#x} is not a page below 1 MiB")]
    InvalidTrampoline {
        /// Its physical address.
        trampoline: u64,
    },
    /// A chunk is empty, not page-aligned, or beyond the supported memory.
    #[error("the memory at {start:#x} ({size} bytes) does not consist of whole pages below 64 TiB")]
    InvalidChunk {
        /// Its physical address.
        start: u64,
        /// Its size in bytes.
        size: u64,
    },
    /// Two chunks overlap.
    #[error("the memory ranges at {first:#x} and {second:#x} overlap")]
    OverlappingChunks {
        /// Physical address of the lower one.
        first: u64,
        /// Physical address of the higher one.
        second: u64,
    },
    /// Not exactly one chunk lies below 1 MiB.
    #[error(
        "the node has {count} memory ranges below 1 MiB and needs exactly one, to start its \
         processors in"
    )]
    LowChunks {
        /// Their number.
        count: usize,
    },
    /// The chunk below 1 MiB is not suitable.
    #[error(
        "the memory at {start:#x} ({size} bytes) is not suitable to start processors in: \
         36 KiB or more between 64 KiB and 640 KiB are needed"
    )]
    LowChunk {
        /// Its physical address.
        start: u64,
        /// Its size in bytes.
        size: u64,
    },
    /// The kernel's description is inconsistent.
    #[error("the image's description of its kernel is damaged: {what}; add the image again")]
    InvalidKernel {
        /// The inconsistency, as a sentence.
        what: &'static str,
    },
    /// No chunk is large enough for the kernel.
    #[error(
        "the kernel needs {} of contiguous memory, the largest usable chunk has {}; request a \
         larger --memory",
        mib_up(*needed), mib_down(*largest)
    )]
    KernelDoesNotFit {
        /// The needed bytes.
        needed: u64,
        /// Bytes of the largest usable chunk.
        largest: u64,
    },
    /// No chunk is large enough for the initrd.
    #[error(
        "the initrd needs {} of contiguous memory, beside the kernel the largest chunk has {}; \
         request a larger --memory",
        mib_up(*needed), mib_down(*largest)
    )]
    InitrdDoesNotFit {
        /// The needed bytes.
        needed: u64,
        /// Bytes of the largest chunk.
        largest: u64,
    },
    /// No chunk is large enough for the tables.
    #[error(
        "the node's firmware tables need {} of contiguous memory beside kernel and initrd; request \
         a larger --memory",
        mib_up(*needed)
    )]
    FirmwareDoesNotFit {
        /// The needed bytes.
        needed: u64,
    },
    /// The monitor's memory is too small for it.
    #[error("the monitor of a confined node needs {} of contiguous memory", mib_up(*needed))]
    MonitorDoesNotFit {
        /// The needed bytes.
        needed: u64,
    },
    /// A PCI bus is listed twice.
    #[error("PCI bus {segment:04x}:{number:02x} is listed twice; list each once")]
    DuplicateBus {
        /// Its segment group.
        segment: u16,
        /// Its number.
        number: u8,
    },
    /// The addresses of a PCI bus are invalid.
    #[error(
        "PCI bus {segment:04x}:{number:02x} has addresses that are not whole pages, do not exist \
         or overlap the node's memory"
    )]
    InvalidBus {
        /// Its segment group.
        segment: u16,
        /// Its number.
        number: u8,
    },
    /// A confined node cannot have a PCI bus.
    #[error(
        "the function on PCI bus {segment:04x}:{number:02x} cannot be a confined node's; give it at most \
         {MONITOR_FUNCTIONS}, for which the machine remaps interrupts"
    )]
    NotConfined {
        /// Its segment group.
        segment: u16,
        /// Its number.
        number: u8,
    },
    /// The command line was refused.
    #[error(transparent)]
    CommandLine(#[from] CommandLineError),
}

/// A needed size, rounded up.
fn mib_up(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

/// An available size, rounded down.
fn mib_down(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}
