//! Resources that Insula has of a machine: unchanged after a refusal, or an end.

use std::fs;

use super::insula_command::{insula_json, names, text};
use crate::base::Finding;

const PAGE_KIB: u64 = 4;

/// Allocated resources and their owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resources {
    /// Online cores of the base.
    pub(crate) online: String,
    /// Number, owner and node of each core.
    pub(crate) cores: Vec<(u64, String, String)>,
    /// Memory of all nodes and images, without the pool's, in bytes.
    pub(crate) allocated: u64,
    /// Memory in the pool, in bytes.
    pub(crate) pool_total: u64,
    /// Unused memory in the pool, in bytes.
    pub(crate) pool_free: u64,
    /// Free memory below 1 MiB, in bytes.
    pub(crate) low_free: u64,
    /// Nodes, ended ones as well.
    pub(crate) nodes: Vec<String>,
    /// Images.
    pub(crate) images: Vec<String>,
}

impl Resources {
    /// Current resources.
    pub(crate) fn now() -> Result<Self, Finding> {
        let machine = insula_json(&["machine", "info", "--json"])?;
        let memory = |key: &str| machine["memory"][key].as_u64().unwrap_or_default();
        let cores = machine["cores"].as_array().into_iter().flatten();
        let core = |core: &serde_json::Value| {
            let number = core["cpu"].as_u64().unwrap_or_default();
            (number, text(&core["owner"]), text(&core["node"]))
        };
        Ok(Self {
            online: online()?,
            cores: cores.map(core).collect(),
            allocated: memory("allocated_bytes"),
            pool_total: memory("pool_total_bytes"),
            pool_free: memory("pool_free_bytes"),
            low_free: memory("low_free_bytes"),
            nodes: names(&["ps", "--all", "--json"])?,
            images: names(&["image", "ls", "--json"])?,
        })
    }

    /// Fails unless they equal `earlier`.
    pub(crate) fn assert_same(&self, earlier: &Self) -> Result<(), Finding> {
        Finding::unless(self == earlier, || {
            format!("Insula's resources have changed:\n{self:?}\nbefore:\n{earlier:?}")
        })
    }

    /// Owner of that core.
    pub(crate) fn owner(&self, cpu: u32) -> &str {
        let found = self.cores.iter().find(|core| core.0 == u64::from(cpu));
        found.map_or("nobody", |core| &core.1)
    }
}

/// Fails unless the resources are unchanged.
pub(crate) fn assert_unchanged(before: &Resources) -> Result<(), Finding> {
    Resources::now()?.assert_same(before)
}

/// Online cores of the base, as the kernel lists them.
pub(crate) fn online() -> Result<String, Finding> {
    Ok(fs::read_to_string("/sys/devices/system/cpu/online")?
        .trim()
        .to_owned())
}

/// Free memory of the base with its caches dropped, in KiB. Pages on the per-cpu lists count as
/// free: MemFree leaves them out, and they come and go with every core.
pub(crate) fn free_kib() -> Result<u64, Finding> {
    drop_caches()?;
    let meminfo = fs::read_to_string("/proc/meminfo")?;
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemFree:"));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    let free: u64 = number.unwrap_or_default().parse()?;
    Ok(free + PAGE_KIB * per_cpu_pages(&fs::read_to_string("/proc/zoneinfo")?))
}

/// Sum of all `count: 5` in /proc/zoneinfo, one for each core and zone (proc_zoneinfo(5)).
fn per_cpu_pages(zoneinfo: &str) -> u64 {
    let counts = zoneinfo
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("count:"));
    counts
        .filter_map(|count| count.trim().parse::<u64>().ok())
        .sum()
}

/// Drops the base's page cache.
pub(crate) fn drop_caches() -> Result<(), Finding> {
    nix::unistd::sync();
    Ok(fs::write("/proc/sys/vm/drop_caches", "3")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn per_cpu_pages_are_counted() {
        let zoneinfo = "Node 0, zone   DMA32\n  pagesets\n    cpu: 0\n              count: 250\n\
                        \x20             high:  378\n    cpu: 1\n              count: 7\n";
        assert_eq!(per_cpu_pages(zoneinfo), 257);
    }
}
