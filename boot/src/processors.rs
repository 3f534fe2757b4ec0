//! The processors listed for a node, by local APIC id.

use crate::LayoutError;
use kimage::Format;
use std::collections::HashSet;

/// The broadcast id of x2APIC mode.
const BROADCAST: u32 = u32::MAX;
/// The first id that Linux does not support in a node. Ids from here on need x2APIC mode, which
/// Linux disables without interrupt remapping (`try_to_enable_x2apic()` in
/// arch/x86/kernel/apic/apic.c), and nodes have none: it panics on such a core, or ignores it.
const LINUX_END: u32 = 255;
/// Preferred id of the phantom.
const PHANTOM: u32 = 240;

/// A node's processors, each id once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Processors<'a> {
    /// The initial ones, the boot core first.
    pub(crate) own: &'a [u32],
    /// Those that may be added.
    pub(crate) spare: &'a [u32],
    /// An id that is listed first without such a processor.
    ///
    /// Linux >= 6.9 takes the first listed processor for the machine's boot processor. If that is
    /// the one it runs on, without the hardware's BSP bit, it assumes to be a crash kernel and uses
    /// no other (`check_for_real_bsp()` in arch/x86/kernel/cpu/topology.c). With a foreign id it
    /// only ignores that id. `disable_cpu_apicid=` has the same effect on older kernels.
    pub(crate) phantom: u32,
}

impl<'a> Processors<'a> {
    /// Checks the lists and chooses the phantom id.
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
                return Err(LayoutError::UnsupportedProcessor { apic_id: id });
            }
            if !ids.insert(id) {
                return Err(LayoutError::DuplicateProcessor { apic_id: id });
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

    /// All ids in listing order.
    pub(crate) fn listed(&self) -> impl Iterator<Item = u32> + '_ {
        let real = self.own.iter().chain(self.spare).copied();
        std::iter::once(self.phantom).chain(real)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phantom_id_is_unused() {
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
                    LayoutError::UnsupportedProcessor { apic_id: 255 | 300 }
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
            Err(LayoutError::DuplicateProcessor { apic_id: 1 })
        ));
        assert!(matches!(
            Processors::of(Format::BzImage, &[1, u32::MAX], &[]),
            Err(LayoutError::BroadcastProcessor)
        ));
    }
}
