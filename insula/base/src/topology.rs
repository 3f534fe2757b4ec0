//! The machine's cores and NUMA nodes as Linux shows them in sysfs
//! (`Documentation/admin-guide/cputopology.rst`).

use std::collections::BTreeMap;

use crate::root::Root;
use crate::units::CpuList;

const CPUS: &str = "/sys/devices/system/cpu";
const NODES: &str = "/sys/devices/system/node";

/// A logical processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processor {
    /// Whether the base schedules on it.
    pub online: bool,
    /// Processors that share its core, including itself. Known only while it is online.
    pub siblings: Vec<u32>,
    /// Number of its package, if known.
    pub package: Option<i32>,
    /// Number of its NUMA node, if known.
    pub numa_node: Option<u32>,
}

/// A NUMA node's memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumaMemory {
    /// Total size.
    pub total: u64,
    /// Free memory.
    pub free: u64,
}

/// Processors by the base's numbers, and NUMA nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// All processors that sysfs shows.
    pub processors: BTreeMap<u32, Processor>,
    /// All NUMA nodes; none when the kernel was built without NUMA.
    pub numa_nodes: BTreeMap<u32, NumaMemory>,
}

impl Topology {
    /// Reads sysfs. What is missing there is missing in the result.
    #[must_use]
    pub fn read(root: &Root) -> Self {
        let online = root
            .value::<CpuList>(&format!("{CPUS}/online"))
            .unwrap_or_default();
        let processor = |cpu| (cpu, read_processor(root, cpu, online.0.contains(&cpu)));
        let numa = |node| Some((node, read_numa_memory(root, node)?));
        Self {
            processors: root
                .numbered(CPUS, "cpu")
                .into_iter()
                .map(processor)
                .collect(),
            numa_nodes: root
                .numbered(NODES, "node")
                .into_iter()
                .filter_map(numa)
                .collect(),
        }
    }

    /// The largest number of processors that share a core.
    #[must_use]
    pub fn threads_per_core(&self) -> usize {
        self.processors
            .values()
            .map(|processor| processor.siblings.len())
            .max()
            .unwrap_or(1)
            .max(1)
    }
}

fn read_processor(root: &Root, cpu: u32, online: bool) -> Processor {
    let folder = format!("{CPUS}/cpu{cpu}");
    let siblings = root.value::<CpuList>(&format!("{folder}/topology/thread_siblings_list"));
    Processor {
        online,
        siblings: siblings.unwrap_or_default().0,
        package: root.value(&format!("{folder}/topology/physical_package_id")),
        numa_node: root.numbered(&folder, "node").first().copied(),
    }
}

fn read_numa_memory(root: &Root, node: u32) -> Option<NumaMemory> {
    let text = root.text(&format!("{NODES}/node{node}/meminfo")).ok()?;
    let field = |name| meminfo_field(&text, name);
    Some(NumaMemory {
        total: field("MemTotal:")?,
        free: field("MemFree:")?,
    })
}

/// A field of a `meminfo` file in bytes; the files have units of 1024 bytes.
fn meminfo_field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    let kilobytes = lines.find_map(|mut words| words.find(|&word| word == name).and(words.next()));
    kilobytes?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The base's memory in bytes, from `/proc/meminfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseMemory {
    /// `MemTotal`.
    pub total: u64,
    /// `MemAvailable`: Linux's estimate of what can be allocated without swapping.
    pub available: u64,
}

impl BaseMemory {
    /// Reads `/proc/meminfo`; `None` when it is missing or malformed.
    #[must_use]
    pub fn read(root: &Root) -> Option<Self> {
        let text = root.text("/proc/meminfo").ok()?;
        let field = |name| meminfo_field(&text, name);
        Some(Self {
            total: field("MemTotal:")?,
            available: field("MemAvailable:")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::fake::Tree;

    #[test]
    fn reads_cores_and_nodes() {
        let tree = Tree::new(&[
            ("/sys/devices/system/cpu/online", "0-1,3\n"),
            (
                "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
                "0-1\n",
            ),
            (
                "/sys/devices/system/cpu/cpu0/topology/physical_package_id",
                "0\n",
            ),
            ("/sys/devices/system/cpu/cpu0/node0/x", ""),
            (
                "/sys/devices/system/cpu/cpu1/topology/thread_siblings_list",
                "0-1\n",
            ),
            ("/sys/devices/system/cpu/cpu2/node1/x", ""),
            ("/sys/devices/system/cpu/cpu3/uevent", ""),
            ("/sys/devices/system/cpu/cpufreq/x", ""),
            (
                "/sys/devices/system/node/node1/meminfo",
                "Node 1 MemTotal:  2048 kB\nNode 1 MemFree:   1024 kB\n",
            ),
        ]);
        let topology = Topology::read(&tree.root());
        let online: Vec<_> = topology
            .processors
            .iter()
            .map(|(cpu, p)| (*cpu, p.online))
            .collect();
        assert_eq!(online, [(0, true), (1, true), (2, false), (3, true)]);
        assert_eq!(topology.processors[&0].siblings, [0, 1]);
        assert_eq!(topology.processors[&0].package, Some(0));
        assert_eq!(topology.processors[&2].numa_node, Some(1));
        assert_eq!(topology.threads_per_core(), 2);
        let memory = NumaMemory {
            total: 2 << 20,
            free: 1 << 20,
        };
        assert_eq!(topology.numa_nodes, BTreeMap::from([(1, memory)]));
    }

    #[test]
    fn a_missing_tree_is_an_empty_machine() {
        let topology = Topology::read(&Tree::new(&[]).root());
        assert_eq!(topology, Topology::default());
        assert_eq!(topology.threads_per_core(), 1);
    }

    #[test]
    fn base_memory() {
        let text = "MemTotal:  4096 kB\nMemFree:  1 kB\nMemAvailable:  2048 kB\n";
        let tree = Tree::new(&[("/proc/meminfo", text)]);
        let memory = BaseMemory {
            total: 4 << 20,
            available: 2 << 20,
        };
        assert_eq!(BaseMemory::read(&tree.root()), Some(memory));
        assert_eq!(BaseMemory::read(&Tree::new(&[]).root()), None);
    }
}
