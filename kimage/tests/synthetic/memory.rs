//! Memory of a synthetic kernel.

use super::image;
use kimage::log::Placement;
use kimage::{PhysicalMemory, ReadError};
use std::cell::{Cell, RefCell};
use std::ops::Range;

/// Start of the memory: not a multiple of 2 MiB.
pub const START: u64 = 0x1_4010_0000;
pub const SIZE: usize = 10 << 20;
/// Placement of the kernel.
pub const PLACEMENT: Placement = Placement {
    physical: 0x1_4040_0000,
    virtual_offset: 0x1460_0000,
};
/// Start of the direct map.
pub const DIRECT_MAP: u64 = 0xffff_9a80_4000_0000;
/// Physical address of the arrays of the dynamic ring.
pub const DYNAMIC_ARRAYS: u64 = START + 0x20_0000;

/// The memory, and a callback before each read: a kernel that runs meanwhile.
pub struct FakeMemory {
    bytes: RefCell<Vec<u8>>,
    #[expect(clippy::type_complexity, reason = "a callback")]
    between_reads: RefCell<Option<Box<dyn FnMut(&FakeMemory)>>>,
    /// Number of reads so far.
    pub reads: Cell<u64>,
}

impl FakeMemory {
    /// Memory with the image's banner and variables at the kernel's placement, and no log.
    pub fn new() -> Self {
        let memory = Self {
            bytes: RefCell::new(vec![0; SIZE]),
            between_reads: RefCell::new(None),
            reads: Cell::new(0),
        };
        memory.write(of_link(image::BANNER_ADDRESS), image::BANNER.as_bytes());
        memory.write(of_link(image::PANIC_CPU), &(-1_i32).to_le_bytes());
        memory.write_u64(of_link(image::PAGE_OFFSET_BASE), DIRECT_MAP);
        memory
    }

    /// Lets `run` change the memory before each read.
    pub fn run_between_reads(&self, run: impl FnMut(&FakeMemory) + 'static) {
        *self.between_reads.borrow_mut() = Some(Box::new(run));
    }

    pub fn write(&self, address: u64, from: &[u8]) {
        let at = (address - START) as usize;
        self.bytes.borrow_mut()[at..at + from.len()].copy_from_slice(from);
    }

    pub fn write_u64(&self, address: u64, word: u64) {
        self.write(address, &word.to_le_bytes());
    }

    pub fn copy_within(&self, from: Range<u64>, to: u64) {
        let range = (from.start - START) as usize..(from.end - START) as usize;
        self.bytes
            .borrow_mut()
            .copy_within(range, (to - START) as usize);
    }
}

impl PhysicalMemory for FakeMemory {
    fn ranges(&self) -> Vec<Range<u64>> {
        // The first is too small for anything.
        vec![0x1_0000..0x2_0000, START..START + SIZE as u64]
    }

    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), ReadError> {
        self.reads.set(self.reads.get() + 1);
        let run = self.between_reads.borrow_mut().take();
        if let Some(mut run) = run {
            run(self);
            *self.between_reads.borrow_mut() = Some(run);
        }
        let bytes = self.bytes.borrow();
        let start = address
            .checked_sub(START)
            .and_then(|start| usize::try_from(start).ok());
        let from = start.and_then(|start| bytes.get(start..start.checked_add(into.len())?));
        into.copy_from_slice(from.ok_or(ReadError {
            address,
            size: into.len(),
        })?);
        Ok(())
    }
}

/// Physical address of a link address.
pub fn of_link(link: u64) -> u64 {
    PLACEMENT.physical + (link - image::TEXT)
}
