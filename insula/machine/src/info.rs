//! The machine's resources: what there is, what is in use, and by which node.

use std::collections::BTreeMap;

use insula_abi as abi;
use insula_base::error::Error;
use insula_base::root::Root;
use insula_base::topology::{BaseMemory, Topology};
use insula_driver::Driver;
use insula_driver::name;
use insula_node::device::{self, DeviceView, PciAddress};
use insula_node::{self as node, Handle};
use serde::Serialize;

/// A core and its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct CoreView {
    /// The base's number for it.
    pub cpu: u32,
    /// Physical id of its local APIC.
    pub apic_id: u32,
    /// `base`, `pool` or `node`.
    pub owner: &'static str,
    /// Whether the base schedules on it.
    pub online: bool,
    /// The node that owns it.
    pub node: Option<String>,
    /// Its NUMA node.
    pub numa_node: Option<u32>,
    /// Its package, known only while it is online.
    pub package: Option<i32>,
}

/// A NUMA node's memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct NumaView {
    /// Its number.
    pub numa_node: u32,
    /// The base's memory there.
    pub total_bytes: u64,
    /// Free memory there.
    pub free_bytes: u64,
}

/// Memory in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct MemoryView {
    /// The base's `MemTotal`.
    pub base_total_bytes: Option<u64>,
    /// The base's `MemAvailable`.
    pub base_available_bytes: Option<u64>,
    /// In the pool.
    pub pool_total_bytes: u64,
    /// Of that, unused.
    pub pool_free_bytes: u64,
    /// Allocated from the base for nodes and images, pool excluded.
    pub allocated_bytes: u64,
    /// Freed, but quarantined until I/O that a process has started on it has finished.
    pub quarantined_bytes: u64,
    /// Memory below 1 MiB that nodes can use.
    pub low_total_bytes: u64,
    /// Of that, free.
    pub low_free_bytes: u64,
    /// By NUMA node.
    pub numa_nodes: Vec<NumaView>,
}

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct MachineView {
    /// `xapic` or `x2apic`.
    pub apic_mode: &'static str,
    /// Frequency of the time stamp counter.
    pub tsc_khz: u32,
    /// Its cores.
    pub cores: Vec<CoreView>,
    /// Its memory.
    pub memory: MemoryView,
    /// Its PCI functions, bridges left out.
    pub devices: Vec<DeviceView>,
}

/// Reads the machine's state from the module and Linux.
///
/// # Errors
/// The module's.
pub fn info(driver: &Driver, root: &Root) -> Result<MachineView, Error> {
    let (machine, cpus) = driver
        .machine()
        .map_err(|source| Error::new("the module failed").because(source).untouched())?;
    let handles = node::all(driver)?;
    let nodes = handles.iter().map(|handle| handle.view());
    let nodes: BTreeMap<u32, String> = nodes.map(|node| (node.id, node.name)).collect();
    let owners = owners(&handles);
    let base = BaseMemory::read(root);
    let topology = Topology::read(root);
    Ok(MachineView {
        devices: device::all(root, |address| owners.get(&address).cloned()),
        ..build_view(&machine, &cpus, &nodes, &topology, base)
    })
}

/// Devices and the nodes that have them. One whose node is removed meanwhile is left out.
fn owners(handles: &[Handle]) -> BTreeMap<PciAddress, String> {
    let of_node = |handle: &Handle| {
        let name = name::text(&handle.info.name);
        let devices = handle.node.devices().unwrap_or_default();
        let held = devices
            .into_iter()
            .filter(|device| device.flags & abi::DEVICE_ATTACHED != 0);
        let held = held.map(move |device| (PciAddress::from_abi(&device), name.clone()));
        held.collect::<Vec<_>>()
    };
    handles.iter().flat_map(of_node).collect()
}

fn build_view(
    machine: &abi::Machine,
    cpus: &[abi::Cpu],
    nodes: &BTreeMap<u32, String>,
    topology: &Topology,
    base: Option<BaseMemory>,
) -> MachineView {
    let x2apic = machine.flags & abi::MACHINE_X2APIC != 0;
    let numa = topology
        .numa_nodes
        .iter()
        .map(|(&numa_node, memory)| NumaView {
            numa_node,
            total_bytes: memory.total,
            free_bytes: memory.free,
        });
    MachineView {
        apic_mode: if x2apic { "x2apic" } else { "xapic" },
        tsc_khz: machine.tsc_khz,
        cores: cpus.iter().map(|cpu| core(cpu, nodes, topology)).collect(),
        memory: MemoryView {
            base_total_bytes: base.map(|base| base.total),
            base_available_bytes: base.map(|base| base.available),
            pool_total_bytes: machine.pool_total,
            pool_free_bytes: machine.pool_free,
            allocated_bytes: machine.allocated,
            quarantined_bytes: machine.quarantined,
            low_total_bytes: machine.lowmem_total,
            low_free_bytes: machine.lowmem_free,
            numa_nodes: numa.collect(),
        },
        devices: Vec::new(),
    }
}

fn core(cpu: &abi::Cpu, nodes: &BTreeMap<u32, String>, topology: &Topology) -> CoreView {
    let processor = topology.processors.get(&cpu.cpu);
    CoreView {
        cpu: cpu.cpu,
        apic_id: cpu.apic_id,
        owner: match cpu.owner {
            abi::CpuOwner::BASE => "base",
            abi::CpuOwner::POOL => "pool",
            abi::CpuOwner::NODE => "node",
            abi::CpuOwner::SHARED => "shared",
            _ => "unknown",
        },
        online: processor.is_some_and(|processor| processor.online),
        node: nodes.get(&cpu.node).cloned(),
        numa_node: processor.and_then(|processor| processor.numa_node),
        package: processor.and_then(|processor| processor.package),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nodes_core_is_shown_with_its_name() {
        let machine = abi::Machine {
            flags: abi::MACHINE_X2APIC,
            allocated: 7,
            ..Default::default()
        };
        let cpu = abi::Cpu {
            cpu: 3,
            apic_id: 6,
            owner: abi::CpuOwner::NODE,
            node: 2,
        };
        let nodes = BTreeMap::from([(2, "web".to_owned())]);
        let view = build_view(&machine, &[cpu], &nodes, &Topology::default(), None);
        assert_eq!((view.apic_mode, view.memory.allocated_bytes), ("x2apic", 7));
        let core = &view.cores[0];
        assert_eq!(
            (core.owner, core.node.as_deref(), core.online),
            ("node", Some("web"), false)
        );
    }
}
