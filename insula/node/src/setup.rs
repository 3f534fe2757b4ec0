//! Preparing a node's memory and record before its first core starts.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use insula_abi as abi;
use insula_abi::channel::Channels;
use insula_agent::network::Network;
use insula_agent::options::{Options, Resolver};
use insula_base::root::Root;
use insula_boot::monitor::{ConfinedNode, MonitorLayout};
use insula_boot::{Layout, LayoutError, NodeDescription};
use insula_driver::channel;
use insula_driver::{CallError, Mapping, Node};
use insula_image::{Bootable, LoadError};
use kimage::{Format, Loadable};
use rustix::rand::{GetRandomFlags, getrandom};

use super::{ChunkRecord, Described, NodeRecord, NodeSpec, RestartRecord, RootImageRecord};
use crate::attachment::{DiskFile, Networking, Volume, resolver};
use crate::clock;
use crate::delegation;
use crate::device::Selected;
use crate::isolation;
use crate::spec;

/// Bytes of the random seed: the key size of the kernel's generator.
const RANDOM_SEED_SIZE: usize = 32;
/// Option of Linux with its host name (Documentation/admin-guide/kernel-parameters.txt).
const HOST_NAME: &str = "hostname";

/// The record is larger than the module allows, with its size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordTooLong(pub(super) usize);

/// The resources of a node, all allocated.
pub(super) struct Setup<'a> {
    pub(super) spec: &'a NodeSpec,
    pub(super) bootable: &'a Bootable,
    /// The node's part of the command line, after the image's.
    pub(super) append: &'a str,
    /// Its name.
    pub(super) name: &'a str,
    /// Local APIC ids of its cores, the boot core first.
    pub(super) cpus: &'a [u32],
    /// Local APIC ids of cores that may be added.
    pub(super) spare_cpus: &'a [u32],
    pub(super) chunks: &'a [abi::Chunk],
    /// Memory shared with other nodes, by physical address.
    pub(super) shared: &'a [abi::Chunk],
    pub(super) devices: &'a [Selected],
    pub(super) machine: &'a abi::Machine,
    pub(super) restart: &'a RestartRecord,
    pub(super) described: Option<&'a Described>,
    /// The folder of the base that is its root.
    pub(super) root: Option<&'a Path>,
    /// Its disks.
    pub(super) disks: &'a [DiskFile],
    /// Folders of the base that it has beside its root.
    pub(super) volumes: &'a [Volume],
    /// The image in memory that is its root.
    pub(super) root_image: Option<&'a RootImageRecord>,
    /// Its network.
    pub(super) network: Option<&'a Networking>,
    /// Whether its program waits for a command to be attached.
    pub(super) is_attached: bool,
}

impl Setup<'_> {
    /// Lays the node out.
    pub(super) fn lay_out(&self) -> Result<Layout, LayoutError> {
        self.describe(insula_boot::lay_out)
    }

    /// Lays out the memory of its monitor, in `chunk`.
    pub(super) fn lay_out_monitor(
        &self,
        layout: &Layout,
        image: &Loadable,
        chunk: insula_boot::Chunk,
    ) -> Result<MonitorLayout, LayoutError> {
        self.describe(|node| self.confined(node, image).lay_out_monitor(layout, chunk))
    }

    /// Bytes of memory that its monitor needs.
    pub(super) fn monitor_size(&self, image: &Loadable) -> Result<u64, LayoutError> {
        self.describe(|node| self.confined(node, image).monitor_size())
    }

    fn confined<'a>(&self, node: &'a NodeDescription<'a>, image: &'a Loadable) -> ConfinedNode<'a> {
        ConfinedNode {
            node,
            nested_paging: isolation::nested_paging(self.machine),
            image,
        }
    }

    /// Calls `action` with the node's description.
    fn describe<T>(&self, action: impl FnOnce(&NodeDescription<'_>) -> T) -> T {
        let chunk = |chunk: &abi::Chunk| insula_boot::Chunk {
            start: chunk.start,
            size: chunk.size,
        };
        let chunks: Vec<_> = self.chunks.iter().map(chunk).collect();
        let shared: Vec<_> = self.shared.iter().map(chunk).collect();
        let buses: Vec<_> = self.devices.iter().map(Selected::bus).collect();
        action(&NodeDescription {
            kernel: &self.bootable.loadable,
            initrd_size: self.bootable.initrd_size,
            command_line: &joined(&self.options(), &joined(&self.bootable.append, self.append)),
            cpus: self.cpus,
            spare_cpus: self.spare_cpus,
            chunks: &chunks,
            persistent: &shared,
            buses: &buses,
            trampoline: self.machine.trampoline,
            tsc_khz: self.machine.tsc_khz,
            channels_size: channel::AREA_SIZE
                + delegation::area_size(&self.bootable.loadable, &chunks),
            is_confined: self.spec.isolation == isolation::Isolation::Vmm,
            random_seed: &self.random_seed(),
        })
    }

    fn is_linux(&self) -> bool {
        self.bootable.loadable.format != Format::Lwk
    }

    /// A seed for Linux, which may have no other source at boot. Empty on failure.
    fn random_seed(&self) -> Vec<u8> {
        let mut seed = vec![0; if self.is_linux() { RANDOM_SEED_SIZE } else { 0 }];
        let had = getrandom(&mut seed[..], GetRandomFlags::empty()).unwrap_or(0);
        seed.truncate(had);
        seed
    }

    /// The options that are others at each start of Linux: the time, for its only clock is the time stamp
    /// counter, the base's name servers, whether a command is to be attached, and the host name, since names can be exchanged. Placed before the
    /// user's part, where everything after `--` is for init.
    fn options(&self) -> String {
        if !self.is_linux() {
            return String::new();
        }
        let agent = Options {
            clock: Some(clock::now(self.machine.tsc_khz)),
            resolver: match self.network.and_then(|network| network.address) {
                Some(own) => resolver(&Root::default(), Network::of(own)),
                None => Resolver::default(),
            },
            attached: self.is_attached,
            ..Options::default()
        };
        let host = match &self.spec.hostname {
            Some(host) => host.as_str(),
            None => self.name,
        };
        format!("{} {HOST_NAME}={host}", agent.command_line())
    }

    /// The node's record.
    pub(super) fn record(&self, layout: &Layout) -> Result<Vec<u8>, RecordTooLong> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let bootable = self.bootable;
        let mut restart = self.restart.clone();
        restart.policy.panic_s = layout.panic_s;
        let record = NodeRecord {
            version: spec::VERSION,
            spec: self.spec.clone(),
            release: bootable.loadable.release.clone(),
            format: bootable.loadable.format,
            kernel: bootable.kernel.clone(),
            initrd: bootable.initrd.clone(),
            payload: bootable.payload,
            command_line: layout.command_line.clone(),
            append: self.append.to_owned(),
            cpus: self.cpus.to_vec(),
            spare_cpus: self.spare_cpus.to_vec(),
            copy: None,
            memory: self.chunks.iter().copied().map(ChunkRecord::from).collect(),
            kernel_address: layout.kernel,
            initrd_address: layout.initrd,
            power_button: layout.power_button,
            generation: layout.generation,
            channels: layout.channels,
            log: bootable.log.clone(),
            restart,
            root: self.root.map(Path::to_owned),
            disks: self.disks.to_vec(),
            volumes: self.volumes.to_vec(),
            root_image: self.root_image.cloned(),
            network: self.network.cloned(),
            created_unix_s: now.map_or(0, |now| now.as_secs()),
            described: self.described.cloned(),
        };
        // Serialising to memory only fails for maps with keys that are not strings.
        let text = serde_json::to_vec(&record).unwrap_or_default();
        if text.len() > abi::DESCRIPTION_MAX {
            return Err(RecordTooLong(text.len()));
        }
        Ok(text)
    }
}

/// Writes the layout to a node's memory.
pub(super) fn write_layout(mapping: &mut Mapping, layout: &Layout) -> Result<(), LoadError> {
    for piece in &layout.pieces {
        mapping.write_at(piece.address, &piece.bytes)?;
    }
    Ok(())
}

/// Sets up channels and starts the first core of a loaded node.
pub(super) fn start_boot_core(node: &Node, layout: &Layout) -> Result<(), CallError> {
    node.lay_out_channels(Channels {
        start: layout.channels,
        count: channel::COUNT,
        slots: channel::SLOTS,
    })?;
    if let Some(area) = delegation::area(layout) {
        node.lay_out_delegation(area)?;
    }
    node.start(&abi::NodeStart {
        entry: layout.entry,
        page_table: layout.page_table,
        argument: layout.argument,
        power_off: layout.power_off,
        reset: layout.reset,
    })
}

/// The user's command line: the image's part, then the node's.
pub(super) fn joined(image: &str, node: &str) -> String {
    let parts = [image.trim(), node.trim()];
    let parts = parts.into_iter().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join(" ")
}
