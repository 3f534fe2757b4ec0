//! Dry run of a node's layout, to detect errors before anything is taken.

use insula_abi as abi;
use insula_base::error::Error;
use insula_boot::{Chunk, LayoutError, NodeDescription};
use insula_driver::channel;
use kimage::Loadable;

use super::setup::joined;
use crate::cores::ChosenCore;
use crate::delegation;
use crate::memory::{LOW_FIRST, LOW_SIZE, MemorySpec};

/// Assumed address of the memory, above all special ranges.
const SOMEWHERE: u64 = 1 << 30;

/// A node whose start is checked.
#[derive(Clone, Copy, Debug)]
pub struct DryRun<'a> {
    /// Its kernel.
    pub kernel: &'a Loadable,
    /// Bytes of its initrd, 0 for none.
    pub initrd_size: u64,
    /// The image's part of the command line.
    pub image_append: &'a str,
    /// The node's part of the command line.
    pub append: &'a str,
    /// Its cores.
    pub cores: &'a [ChosenCore],
    /// APIC ids of cores that may be added.
    pub spare_apic_ids: &'a [u32],
    /// Its memory.
    pub memory: &'a [MemorySpec],
}

impl DryRun<'_> {
    /// Lays it out with all its memory contiguous. The real layout may still fail if the memory is
    /// fragmented.
    ///
    /// # Errors
    /// Why it cannot be laid out, about the option that would have to change.
    pub fn run(&self, machine: &abi::Machine) -> Result<(), Error> {
        let sizes = self.memory.iter().map(|spec| spec.size.0);
        let low = Chunk {
            start: LOW_FIRST,
            size: LOW_SIZE,
        };
        let high = Chunk {
            start: SOMEWHERE,
            size: sizes.fold(0, u64::saturating_add),
        };
        let chunks = [low, high];
        let cpus: Vec<u32> = self.cores.iter().map(|one| one.apic_id).collect();
        insula_boot::lay_out(&NodeDescription {
            kernel: self.kernel,
            initrd_size: self.initrd_size,
            command_line: &joined(self.image_append, self.append),
            cpus: &cpus,
            spare_cpus: self.spare_apic_ids,
            chunks: &chunks,
            // They need hardly any memory.
            buses: &[],
            trampoline: machine.trampoline,
            tsc_khz: machine.tsc_khz,
            channels_size: channel::AREA_SIZE + delegation::area_size(self.kernel, &chunks),
            persistent: &[],
            // It would have fewer options.
            is_confined: false,
            random_seed: &[],
        })
        .map(drop)
        .map_err(|error| cannot_lay_out(&error))
    }
}

fn cannot_lay_out(error: &LayoutError) -> Error {
    let option = match error {
        LayoutError::CommandLine(_) => "append",
        _ => "memory",
    };
    Error::new(error.to_string()).about(option)
}
