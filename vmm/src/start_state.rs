//! State in which a guest's core starts: after INIT, or at its kernel's entry.
//!
//! Sources: AMD APM volume 2, 14.1.3; Intel SDM volume 3, 10.1.1 "Processor State After Reset".

/// A segment register. Its layout is that of AMD's control block.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Selector.
    pub selector: u16,
    /// Attributes: bits 40 to 47 and 52 to 55 of a descriptor.
    pub attributes: u16,
    /// Limit in bytes.
    pub limit: u32,
    /// Base.
    pub base: u64,
}

/// Registers of a core that starts. All others are zero, or have the value of [`RFLAGS`] and its like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartState {
    /// Code segment.
    pub code: Segment,
    /// All data segments.
    pub data: Segment,
    /// Task register.
    pub task: Segment,
    /// CR0.
    pub cr0: u64,
    /// CR3.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
    /// EFER.
    pub efer: u64,
    /// RIP.
    pub rip: u64,
}

/// Local descriptor table.
pub const LOCAL_TABLE: Segment = Segment::new(0, 0x082, 0xffff, 0);
/// Global and interrupt descriptor tables, which have no attributes.
pub const TABLE: Segment = Segment::new(0, 0, 0xffff, 0);
/// RFLAGS: the bit that is always set.
pub const RFLAGS: u64 = 1 << 1;
/// DR6.
pub const DR6: u64 = 0xffff_0ff0;
/// DR7.
pub const DR7: u64 = 0x400;
/// Memory types of page table entries.
pub const PAT: u64 = 0x0007_0406_0007_0406;

/// CR0: paging, protection, extension type; caches disabled and not written through.
const CR0_PG: u64 = 1 << 31;
const CR0_PE: u64 = 1 << 0;
const CR0_ET: u64 = 1 << 4;
/// CR0: caches are disabled.
pub const CR0_CD: u64 = 1 << 30;
/// CR0: caches are not written through.
pub const CR0_NW: u64 = 1 << 29;
const CR4_PAE: u64 = 1 << 5;
const CR4_OSXSAVE: u64 = 1 << 18;
/// EFER: 64-bit mode is enabled.
pub const EFER_LME: u64 = 1 << 8;
/// EFER: 64-bit mode is active.
pub const EFER_LMA: u64 = 1 << 10;

/// Attributes: present, writable data, accessed; with a granularity of 4 KiB and 32 bits.
const DATA16: u16 = 0x093;
const DATA32: u16 = 0xc93;
/// Present, readable code, accessed; in 64-bit mode.
const CODE16: u16 = 0x09b;
const CODE64: u16 = 0xa9b;
/// Busy task state, of 16 and of 64 bits.
const TASK16: u16 = 0x083;
const TASK64: u16 = 0x08b;

impl Segment {
    const fn new(selector: u16, attributes: u16, limit: u32, base: u64) -> Self {
        Self {
            selector,
            attributes,
            limit,
            base,
        }
    }
}

impl StartState {
    /// The state after INIT, at an address of real mode.
    #[must_use]
    pub const fn reset(selector: u16, rip: u64) -> Self {
        Self {
            code: Segment::new(selector, CODE16, 0xffff, (selector as u64) << 4),
            data: Segment::new(0, DATA16, 0xffff, 0),
            task: Segment::new(0, TASK16, 0xffff, 0),
            cr0: CR0_CD | CR0_NW | CR0_ET,
            cr3: 0,
            cr4: 0,
            efer: 0,
            rip,
        }
    }

    /// The state in which a lightweight kernel that shares the core starts: with XSAVE enabled.
    #[must_use]
    pub const fn shared(entry: u64, page_table: u64) -> Self {
        let start = Self::kernel(entry, page_table);
        Self {
            code: Segment::new(0x08, CODE64, u32::MAX, 0),
            cr4: start.cr4 | CR4_OSXSAVE,
            ..start
        }
    }

    /// The state in which the base starts the first core of a node (`struct insula_node_start`).
    #[must_use]
    pub const fn kernel(entry: u64, page_table: u64) -> Self {
        Self {
            code: Segment::new(0x10, CODE64, u32::MAX, 0),
            data: Segment::new(0x18, DATA32, u32::MAX, 0),
            task: Segment::new(0, TASK64, 0xffff, 0),
            cr0: CR0_PG | CR0_PE | CR0_ET,
            cr3: page_table,
            cr4: CR4_PAE,
            efer: EFER_LME | EFER_LMA,
            rip: entry,
        }
    }
}
