//! The processors that a node is told of, by local APIC id.

use crate::LayoutError;
use kimage::Format;
use std::collections::HashSet;

/// The id that means "all processors" to an x2APIC.
const BROADCAST: u32 = u32::MAX;
/// The first id that Linux cannot have in a node. From here on ids are reached in x2APIC mode only, and Linux
/// leaves that mode where the interrupts of devices are not remapped (`try_to_enable_x2apic()` in
/// arch/x86/kernel/apic/apic.c), which no node is told of: it panics on such a core, or does without it.
const LINUX_END: u32 = 255;
/// Which id the phantom has, unless a processor of the node has it.
const PHANTOM: u32 = 240;

/// A node's processors, each id once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Processors<'a> {
    /// Those it starts with; the first boots.
    pub(crate) own: &'a [u32],
    /// Those that it may bring online later.
    pub(crate) spare: &'a [u32],
    /// An id that is listed first and that no processor of the node has.
    ///
    /// Linux >= 6.9 takes the processor listed first for the one that booted the machine, and if that is the one
    /// it runs on, which was not marked so by the hardware, it holds itself for a crash kernel and uses no other
    /// (`check_for_real_bsp()` in arch/x86/kernel/cpu/topology.c). A listed id that is none of its own makes it
    /// leave only that id alone. Older kernels do the same by `disable_cpu_apicid=`.
    pub(crate) phantom: u32,
}

impl<'a> Processors<'a> {
    /// Checks the lists and picks the phantom.
    pub(crate) fn of(
        kernel: Format,
        own: &'a [u32],
        spare: &'a [u32],
    ) -> Result<Self, LayoutError> {
        if own.is_empty() {
            return Err(LayoutError::NoProcessor);
        }
        let mut ids = HashSet::new();
        for &id in own.iter().chain(spare) {
            if id == BROADCAST {
                return Err(LayoutError::BroadcastProcessor);
            }
            if id >= LINUX_END && kernel != Format::Lwk {
                return Err(LayoutError::FarProcessor { apic_id: id });
            }
            if !ids.insert(id) {
                return Err(LayoutError::ProcessorTwice { apic_id: id });
            }
        }
        let mut candidates = (0..=PHANTOM).rev().chain(PHANTOM + 1..BROADCAST);
        let phantom = candidates.find(|id| !ids.contains(id));
        Ok(Processors {
            own,
            spare,
            phantom: phantom.ok_or(LayoutError::NoProcessor)?,
        })
    }

    /// All ids in the order in which they are listed.
    pub(crate) fn listed(&self) -> impl Iterator<Item = u32> + '_ {
        let real = self.own.iter().chain(self.spare).copied();
        std::iter::once(self.phantom).chain(real)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phantom_is_nobody() {
        assert_eq!(
            Processors::of(Format::BzImage, &[1, 2], &[])
                .unwrap()
                .phantom,
            240
        );
        assert_eq!(
            Processors::of(Format::BzImage, &[1, 240], &[239])
                .unwrap()
                .phantom,
            238
        );
        let low: Vec<u32> = (0..=240).collect();
        assert_eq!(
            Processors::of(Format::BzImage, &low, &[241])
                .unwrap()
                .phantom,
            242
        );
    }

    #[test]
    fn lists_phantom_own_spare() {
        let processors = Processors::of(Format::BzImage, &[3, 1], &[2]).unwrap();
        assert_eq!(processors.listed().collect::<Vec<_>>(), [240, 3, 1, 2]);
    }

    #[test]
    fn linux_has_no_processor_that_needs_x2apic() {
        for (own, spare) in [(&[1, 255][..], &[][..]), (&[1], &[300])] {
            for linux in [Format::BzImage, Format::Elf] {
                let refused = Processors::of(linux, own, spare).unwrap_err();
                assert!(matches!(
                    refused,
                    LayoutError::FarProcessor { apic_id: 255 | 300 }
                ));
            }
            assert!(Processors::of(Format::Lwk, own, spare).is_ok());
        }
        assert!(Processors::of(Format::BzImage, &[254], &[]).is_ok());
    }

    #[test]
    fn refuses_bad_lists() {
        assert!(matches!(
            Processors::of(Format::BzImage, &[], &[1]),
            Err(LayoutError::NoProcessor)
        ));
        assert!(matches!(
            Processors::of(Format::BzImage, &[1], &[1]),
            Err(LayoutError::ProcessorTwice { apic_id: 1 })
        ));
        assert!(matches!(
            Processors::of(Format::BzImage, &[1, u32::MAX], &[]),
            Err(LayoutError::BroadcastProcessor)
        ));
    }
}
