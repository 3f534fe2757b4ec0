//! Modules of the base's kernel that serve nodes' virtio devices.

use std::path::Path;
use std::process::Command;

use super::insula_command::wait_for;
use crate::base::Finding;

/// Modules that the base loads for sockets to nodes.
pub(crate) const SOCKET_MODULES: [&str; 3] = ["vhost_vsock", "vhost_iotlb", "vsock"];
/// Modules that the base loads for the network of nodes, in the order in which they can be
/// unloaded.
pub(crate) const NETWORK_MODULES: [&str; 18] = [
    "vhost_net",
    "tun",
    "bridge",
    "stp",
    "llc",
    "nft_nat",
    "nft_fib_ipv4",
    "nft_fib",
    "nft_masq",
    "nft_ct",
    "nft_chain_nat",
    "nf_nat",
    "nf_tables",
    "nf_conntrack",
    "nf_defrag_ipv4",
    "nf_defrag_ipv6",
    "nfnetlink",
    "libcrc32c",
];

/// Loads sockets. Otherwise the first socket would have Linux load a transport of another
/// hypervisor's for it.
pub(crate) fn load_sockets() -> Result<(), Finding> {
    modprobe(&["vsock"])
}

/// Unloads the modules, once Linux has dropped the last connection: one that the node did not
/// confirm takes some seconds.
pub(crate) fn unload(modules: &[&str]) -> Result<(), Finding> {
    // Newer kernels lack some.
    let is_loaded = |name: &&str| Path::new("/sys/module").join(name).exists();
    wait_for("the modules for sockets to be unused", || {
        let loaded = modules.iter().copied().filter(is_loaded);
        let words: Vec<_> = ["-r"].into_iter().chain(loaded).collect();
        if words.len() == 1 {
            return Ok(Some(()));
        }
        Ok(modprobe(&words).ok())
    })
}

/// Loads or unloads modules.
pub(crate) fn modprobe(words: &[&str]) -> Result<(), Finding> {
    let answer = Command::new("modprobe").args(words).output()?;
    Finding::unless(answer.status.success(), || {
        format!(
            "modprobe {words:?}: {}",
            String::from_utf8_lossy(&answer.stderr)
        )
    })
}
