//! Which of root's powers are kept.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, capabilities, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities,
};

use super::{RestrictError, kernel};
use crate::node::NodeRecord;

/// What every supervisor needs: to read the files of the node's image again, whoever owns them.
const SUPERVISOR: CapabilitySet = CapabilitySet::DAC_READ_SEARCH;
/// What a program needs that serves a disk: to open it, whoever owns it.
pub(super) const DISK_SERVER: CapabilitySet =
    CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::DAC_READ_SEARCH);
/// What it takes to make a network interface and to publish a port below 1024.
const NETWORK: CapabilitySet = CapabilitySet::NET_ADMIN.union(CapabilitySet::NET_BIND_SERVICE);
/// What it takes to look at PCI functions again before a start: of their configuration space, all but
/// the first 64 bytes is for who has this.
const FUNCTIONS: CapabilitySet = CapabilitySet::SYS_ADMIN;
/// What `virtiofsd` needs: to act on files as any user of the node, and, at its start, to make the
/// folder its root in a mount namespace of its own, to raise its limit of descriptors and to give
/// up the rest itself.
pub(super) const FILE_SERVER: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::SYS_RESOURCE);

/// What a node's devices need of the processes that serve them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// A folder of the base is served to it.
    pub folder: bool,
    /// A file or block device of the base is served to it.
    pub disk: bool,
    /// It has a network card.
    pub network: bool,
    /// It has PCI functions of its own.
    pub functions: bool,
}

impl Needs {
    /// Those of a node with this record, and with PCI functions or none.
    #[must_use]
    pub fn of(record: &NodeRecord, functions: bool) -> Self {
        Self {
            folder: record.root.is_some(),
            disk: !record.disks.is_empty(),
            network: record.network.is_some(),
            functions,
        }
    }

    /// The capabilities that its supervisor keeps.
    pub(super) fn supervisor(self) -> CapabilitySet {
        let needed = [
            (self.folder, FILE_SERVER),
            (self.disk, DISK_SERVER),
            (self.network, NETWORK),
            (self.functions, FUNCTIONS),
        ];
        let needed = needed.into_iter().filter(|(is_needed, _)| *is_needed);
        needed.fold(SUPERVISOR, |all, (_, set)| all | set)
    }
}

/// Keeps only these of the capabilities that the thread has. Allocates nothing unless it fails.
pub(super) fn keep(kept: CapabilitySet) -> Result<(), RestrictError> {
    let failed = kernel("capabilities");
    let mut sets = capabilities(None).map_err(&failed)?;
    sets.effective &= kept;
    sets.permitted &= kept;
    sets.inheritable = CapabilitySet::empty();
    set_capabilities(None, sets).map_err(failed)
}

/// Has no program that is executed from now on get any but these.
pub(super) fn limit_bounding_set(kept: CapabilitySet) -> Result<(), RestrictError> {
    let failed = kernel("capabilities");
    let may_limit = capabilities(None)
        .map_err(&failed)?
        .effective
        .contains(CapabilitySet::SETPCAP);
    // Who may not has no more than a user has, and without new privileges gets no more.
    if !may_limit {
        return Ok(());
    }
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match capability_is_in_bounding_set(capability) {
            Ok(true) if !kept.contains(capability) => {
                remove_capability_from_bounding_set(capability).map_err(&failed)?;
            }
            Ok(_) => {}
            // The kernel knows of no more.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVIL: CapabilitySet = CapabilitySet::SYS_MODULE
        .union(CapabilitySet::SYS_RAWIO)
        .union(CapabilitySet::SYS_BOOT)
        .union(CapabilitySet::SYS_PTRACE)
        .union(CapabilitySet::BPF)
        .union(CapabilitySet::SYS_TIME);

    #[test]
    fn a_node_without_devices_needs_next_to_nothing() {
        assert_eq!(
            Needs::default().supervisor(),
            CapabilitySet::DAC_READ_SEARCH
        );
    }

    #[test]
    fn each_device_adds_its_own() {
        let network = Needs {
            network: true,
            ..Needs::default()
        };
        assert!(network.supervisor().contains(CapabilitySet::NET_ADMIN));
        assert!(!network.supervisor().contains(CapabilitySet::SYS_ADMIN));
        let disk = Needs {
            disk: true,
            ..Needs::default()
        };
        assert_eq!(disk.supervisor(), DISK_SERVER);
    }

    #[test]
    fn no_device_is_worth_the_kernel() {
        let all = Needs {
            folder: true,
            disk: true,
            network: true,
            functions: true,
        };
        assert!(all.supervisor().intersection(EVIL).is_empty());
        assert!(all.supervisor().contains(FILE_SERVER | DISK_SERVER));
    }
}
