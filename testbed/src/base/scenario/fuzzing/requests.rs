//! Requests of the module, to be picked at random.

use fastrand::Rng;
use insula_abi::ioctl;

/// Kind of descriptor that a request is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Control,
    Memory,
    Node,
    Channel,
    GrantTable,
}

impl Kind {
    /// All of them.
    pub(super) const ALL: [Self; 5] = [
        Self::Control,
        Self::Memory,
        Self::Node,
        Self::Channel,
        Self::GrantTable,
    ];
}

/// Lists name, descriptor and weight of requests, one after the other.
macro_rules! requests {
    ($($request:ident $kind:ident $share:literal),+ $(,)?) => {
        &[$((ioctl::$request, stringify!($request), Kind::$kind, $share)),+]
    };
}

/// Each request, its kind of descriptor, and its weight. Requests that take cores are slow, and
/// have a smaller weight.
pub(super) const REQUESTS: &[(u32, &str, Kind, u32)] = requests![
    HELLO Control 10,
    MACHINE Control 40,
    POOL_RESERVE Control 12,
    POOL_RELEASE Control 6,
    MEMORY_CREATE Control 60,
    MEMORY_SHOW Control 60,
    BASE_MEMORY Control 20,
    IMAGE_ADD Control 60,
    IMAGE_OPEN Control 40,
    IMAGE_REMOVE Control 60,
    IMAGE_LIST Control 40,
    IMAGE_REPLACE Control 30,
    NODE_CREATE Control 60,
    NODE_OPEN Control 40,
    NODE_LIST Control 40,
    MEMORY_GROW Memory 80,
    MEMORY_CHUNKS Memory 80,
    MEMORY_COPY Memory 80,
    MEMORY_USE Memory 20,
    MEMORY_STORE_SET Memory 20,
    MEMORY_OWN_SET Memory 20,
    MEMORY_LIST_SET Memory 20,
    MEMORY_GIVE_SET Memory 40,
    DESCRIPTION Memory 60,
    NODE_START Node 60,
    NODE_STOP Node 60,
    NODE_INFO Node 60,
    NODE_REMOVE Node 40,
    NODE_MEMORY Node 20,
    NODE_INTERRUPT Node 60,
    NODE_SUPERVISE Node 40,
    NODE_RETIRE Node 20,
    NODE_EXCHANGE_NAMES Node 20,
    NODE_RENAME Node 20,
    NODE_RECREATE Node 20,
    NODE_GROW Node 40,
    NODE_SHRINK Node 40,
    NODE_SHARE Node 40,
    NODE_SHARED Node 20,
    NODE_DEVICE_ADD Node 40,
    NODE_DEVICES Node 40,
    DESCRIPTION Node 60,
    NODE_CHANNELS Node 40,
    CHANNEL_OPEN Node 80,
    CHANNEL_RING Channel 60,
    CHANNEL_EVENTFD Channel 80,
    NODE_GRANT_TABLE Node 20,
    GRANT_ADD GrantTable 40,
    GRANT_REVOKE GrantTable 20,
    NODE_DELEGATION Node 40,
    NODE_CONFINE Node 60,
    NODE_MONITOR Node 20,
    MIRROR_CREATE Node 60,
];

/// A random request from the list, and its kind of descriptor.
pub(super) fn pick(rng: &mut Rng) -> (u32, Kind) {
    let total: u32 = REQUESTS.iter().map(|request| request.3).sum();
    let mut left = rng.u32(..total);
    for &(request, _, kind, weight) in REQUESTS {
        if left < weight {
            return (request, kind);
        }
        left -= weight;
    }
    (ioctl::HELLO, Kind::Control)
}

/// A random number, mostly one that looks like a request of the module.
pub(super) fn random_request(rng: &mut Rng) -> u32 {
    let number = rng.u32(..);
    if rng.u8(..4) == 0 {
        return number;
    }
    number & !0xff00 | u32::from(ioctl::IOC) << 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_picked() {
        let mut rng = Rng::with_seed(7);
        let picked: std::collections::BTreeSet<u32> =
            (0..20_000).map(|_| pick(&mut rng).0).collect();
        // The request for a description exists for two kinds.
        assert_eq!(picked.len(), REQUESTS.len() - 1);
    }
}
