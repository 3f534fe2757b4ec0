//! Laying a node out in the memory that it would have at best, to find before anything is taken what
//! cannot be.

use insula_abi as abi;
use insula_boot::{Chunk, LayoutError, NodeDescription};
use kimage::Loadable;

use super::setup::joined;
use crate::channel;
use crate::cores::Chosen;
use crate::memory::{LOW_FIRST, LOW_SIZE, MemorySpec};
use crate::program;

/// Where the memory is thought to be: anywhere above what is special.
const SOMEWHERE: u64 = 1 << 30;

/// A node that may be started.
#[derive(Clone, Copy, Debug)]
pub struct Trial<'a> {
    /// Its kernel.
    pub kernel: &'a Loadable,
    /// Bytes of its initrd, 0 for none.
    pub initrd_size: u64,
    /// The image's part of the command line.
    pub image_append: &'a str,
    /// The node's.
    pub append: &'a str,
    /// Its cores.
    pub cores: &'a [Chosen],
    /// APIC ids of those that it may get later.
    pub spares: &'a [u32],
    /// Its memory.
    pub memory: &'a [MemorySpec],
}

impl Trial<'_> {
    /// Lays it out with all its memory in one stretch. What passes may still fail, when the memory
    /// that is taken is in pieces.
    ///
    /// # Errors
    /// [`LayoutError`].
    pub fn run(&self, machine: &abi::Machine) -> Result<(), LayoutError> {
        let sizes = self.memory.iter().map(|spec| spec.size.0);
        let low = Chunk {
            start: LOW_FIRST,
            size: LOW_SIZE,
        };
        let high = Chunk {
            start: SOMEWHERE,
            size: sizes.fold(0, u64::saturating_add),
        };
        let cpus: Vec<u32> = self.cores.iter().map(|one| one.apic_id).collect();
        insula_boot::lay_out(&NodeDescription {
            kernel: self.kernel,
            initrd_size: self.initrd_size,
            command_line: &joined(self.image_append, self.append),
            cpus: &cpus,
            spare_cpus: self.spares,
            chunks: &[low, high],
            // They take no memory to speak of.
            buses: &[],
            trampoline: machine.trampoline,
            tsc_khz: machine.tsc_khz,
            channels_size: channel::AREA_SIZE + program::area_size(self.kernel),
            persistent: &[],
            random_seed: &[],
        })
        .map(drop)
    }
}
