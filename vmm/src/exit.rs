//! Exits from the guest, whatever the processor's kind of virtualization.

use insula_abi::monitor::MonitorExit;

/// Reason of an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// A non-maskable interrupt.
    Nmi,
    /// An exception, as the event to deliver.
    Exception(u64),
    /// The base resets the core.
    Init,
    /// The guest returns, or is about to return, from an interrupt, and by that from its NMI handler.
    InterruptReturn,
    /// The guest takes interrupts, and has taken those that were pending.
    InterruptWindow,
    /// The processor's kind has answered it.
    Handled,
    /// CPUID.
    Cpuid,
    /// RDMSR.
    ReadMsr(u32),
    /// WRMSR.
    WriteMsr {
        /// The register.
        register: u32,
        /// The value.
        value: u64,
    },
    /// IN.
    ReadPort {
        /// The port.
        port: u16,
        /// Size of the access in bytes.
        size: u8,
    },
    /// OUT.
    WritePort {
        /// The port.
        port: u16,
        /// Size of the access in bytes.
        size: u8,
        /// The value.
        value: u32,
    },
    /// INS or OUTS.
    PortString(u16),
    /// WBINVD, WBNOINVD or INVD: flushing caches that all kernels share.
    FlushCaches,
    /// XSETBV: enabling states of the processor.
    WriteXcr {
        /// The register.
        register: u32,
        /// The value.
        value: u64,
    },
    /// Access outside the nested page table.
    Memory {
        /// The address that the guest takes for physical.
        address: u64,
        /// The error code of a page fault.
        error: u64,
    },
    /// A triple fault.
    Shutdown,
    /// An instruction of virtualization, by the processor's exit code.
    Virtualization(u64),
    /// Another instruction or event, by the processor's exit code.
    Other(u64),
}

impl Exit {
    /// The cause by which it is counted.
    #[must_use]
    pub fn cause(self) -> MonitorExit {
        match self {
            Self::Nmi | Self::InterruptReturn | Self::InterruptWindow => MonitorExit::NMI,
            Self::Cpuid => MonitorExit::CPUID,
            Self::WriteMsr { register, .. } if register == crate::policy::msr::ICR => {
                MonitorExit::ICR
            }
            Self::ReadMsr(_) | Self::WriteMsr { .. } => MonitorExit::MSR,
            Self::ReadPort { .. } | Self::WritePort { .. } | Self::PortString(_) => {
                MonitorExit::PORT
            }
            Self::Memory { .. } => MonitorExit::MEMORY,
            _ => MonitorExit::OTHER,
        }
    }
}
