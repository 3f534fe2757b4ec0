//! Capabilities that are kept.

use insula_base::error::Error;
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, capabilities, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities,
};

use super::kernel;

/// Needed by every supervisor: to read the files of the node's image again, of any owner.
const SUPERVISOR: CapabilitySet = CapabilitySet::DAC_READ_SEARCH;
/// Needed by a disk server: to open the disk, of any owner.
pub(super) const DISK_SERVER: CapabilitySet =
    CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::DAC_READ_SEARCH);
/// Needed to create a network interface and to publish a port below 1024.
const NETWORK: CapabilitySet = CapabilitySet::NET_ADMIN.union(CapabilitySet::NET_BIND_SERVICE);
/// Needed to connect to a node's agent, which only takes connections from a port below 1024.
const AGENT: CapabilitySet = CapabilitySet::NET_BIND_SERVICE;
/// Needed to check PCI functions again before a start: their configuration space beyond the first
/// 64 bytes requires it.
const FUNCTIONS: CapabilitySet = CapabilitySet::SYS_ADMIN;
/// Needed by `virtiofsd`: to act on files as any user of the node, and, at its start, to enter a
/// mount namespace with the folder as its root, to raise its limit of descriptors and to drop the
/// rest itself.
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

/// A node's devices, as far as their servers need privileges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceNeeds {
    /// A folder of the base is shared with it.
    pub folder: bool,
    /// A file or block device of the base is its disk.
    pub disk: bool,
    /// It has a network card.
    pub network: bool,
    /// It has PCI functions of its own.
    pub functions: bool,
    /// Its agent is told the time.
    pub clock: bool,
}

impl DeviceNeeds {
    /// The capabilities that its supervisor keeps.
    pub(super) fn supervisor(self) -> CapabilitySet {
        let needed = [
            (self.folder, FILE_SERVER),
            (self.disk, DISK_SERVER),
            (self.network, NETWORK),
            (self.functions, FUNCTIONS),
            (self.clock, AGENT),
        ];
        let needed = needed.into_iter().filter(|(is_needed, _)| *is_needed);
        needed.fold(SUPERVISOR, |all, (_, set)| all | set)
    }
}

/// Reduces the thread's capabilities to these. Allocates nothing unless it fails.
pub(super) fn retain(kept: CapabilitySet) -> Result<(), Error> {
    let failed = kernel("giving up capabilities");
    let mut sets = capabilities(None).map_err(&failed)?;
    sets.effective &= kept;
    sets.permitted &= kept;
    sets.inheritable = CapabilitySet::empty();
    set_capabilities(None, sets).map_err(failed)
}

/// Limits the capabilities of programs executed from now on to these.
pub(super) fn limit_bounding_set(kept: CapabilitySet) -> Result<(), Error> {
    let failed = kernel("giving up capabilities");
    let may_limit = capabilities(None)
        .map_err(&failed)?
        .effective
        .contains(CapabilitySet::SETPCAP);
    // Without CAP_SETPCAP the process has no more than a user has, and with no_new_privs gets no
    // more.
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
            // The kernel has no more.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DANGEROUS: CapabilitySet = CapabilitySet::SYS_MODULE
        .union(CapabilitySet::SYS_RAWIO)
        .union(CapabilitySet::SYS_BOOT)
        .union(CapabilitySet::SYS_PTRACE)
        .union(CapabilitySet::BPF)
        .union(CapabilitySet::SYS_TIME);

    #[test]
    fn a_node_without_devices_needs_one_capability() {
        assert_eq!(
            DeviceNeeds::default().supervisor(),
            CapabilitySet::DAC_READ_SEARCH
        );
    }

    #[test]
    fn each_device_adds_its_own() {
        let network = DeviceNeeds {
            network: true,
            ..DeviceNeeds::default()
        };
        assert!(network.supervisor().contains(CapabilitySet::NET_ADMIN));
        assert!(!network.supervisor().contains(CapabilitySet::SYS_ADMIN));
        let disk = DeviceNeeds {
            disk: true,
            ..DeviceNeeds::default()
        };
        assert_eq!(disk.supervisor(), DISK_SERVER);
    }

    #[test]
    fn no_device_needs_power_over_the_kernel() {
        let all = DeviceNeeds {
            folder: true,
            disk: true,
            network: true,
            functions: true,
            clock: true,
        };
        assert!(all.supervisor().intersection(DANGEROUS).is_empty());
        assert!(all.supervisor().contains(FILE_SERVER | DISK_SERVER));
    }
}
