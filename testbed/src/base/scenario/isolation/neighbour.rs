//! Those whom an attack must not harm: the base, by memory whose content is known, and another node.

use insula_abi::{GRANULE, NUMA_ANY, Request};
use insula_driver::{Driver, Mapping, Memory};

use crate::base::support::insula_command::assert_equal;
use crate::base::support::nodes::test_node::{TestNode, peer_image};
use crate::base::{Context, Finding};

/// A trusted node that computes, and the base's canary.
pub(crate) struct Neighbour {
    pub(crate) node: TestNode,
    pub(crate) canary: Canary,
}

impl Neighbour {
    /// Starts the node, and waits until it computes.
    pub(crate) fn start(context: &Context) -> Result<Self, Finding> {
        let canary = Canary::place(&Driver::open()?)?;
        let image = peer_image(context, "6.12")?;
        let size = ["--memory", "192M"];
        let node = TestNode::start("neighbour", &["--image", &image], &size, "compute")?;
        node.wait_until_ready()?;
        Ok(Self { node, canary })
    }

    /// Fails unless the base's memory has its content, and the node goes on from where it was.
    pub(crate) fn assert_unharmed(&self) -> Result<(), Finding> {
        assert_equal(
            "first changed byte of the base's memory",
            &self.canary.changed()?,
            &None,
        )?;
        self.node.assert_works()?;
        assert_equal("starts", &self.node.inspect()?["starts"].as_u64(), &Some(1))
    }

    /// Removes the node, and frees the memory.
    pub(crate) fn remove(self) -> Result<(), Finding> {
        self.node.remove()
    }
}

/// Memory of the base whose content is known.
pub(crate) struct Canary {
    memory: Mapping,
    _object: Memory,
    /// Its physical address.
    pub(crate) address: u64,
}

impl Canary {
    const BYTE: u8 = 0x5a;

    /// Allocates and fills it.
    fn place(driver: &Driver) -> Result<Self, Finding> {
        Self::place_within(driver, 0, 0)
    }

    /// Allocates and fills memory at `address`, which is free.
    pub(crate) fn place_at(driver: &Driver, address: u64) -> Result<Self, Finding> {
        Self::place_within(driver, address, address + GRANULE)
    }

    fn place_within(driver: &Driver, min_phys: u64, max_phys: u64) -> Result<Self, Finding> {
        let object = driver.create_memory()?;
        object.grow(&Request {
            size: GRANULE,
            min_phys,
            max_phys,
            chunk_max: 0,
            numa_node: NUMA_ANY,
            flags: 0,
        })?;
        let mut memory = object.map()?;
        memory.write(0, &vec![Self::BYTE; GRANULE as usize])?;
        let address = object.chunks()?[0].start;
        Ok(Self {
            memory,
            _object: object,
            address,
        })
    }

    /// Offset of its first byte that somebody has changed.
    pub(crate) fn changed(&self) -> Result<Option<usize>, Finding> {
        let mut bytes = vec![0; GRANULE as usize];
        self.memory.read(0, &mut bytes)?;
        Ok(bytes.iter().position(|&byte| byte != Self::BYTE))
    }
}
