//! What Insula holds of a machine: what must be as before when something was refused, or has gone.

use std::fs;

use super::Finding;
use super::insula_command::{insula_json, names, text};

const PAGE_KIB: u64 = 4;

/// What is taken, and by whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holdings {
    /// Cores that the base runs on.
    pub(super) online: String,
    /// Each core's number, owner and node.
    pub(super) cores: Vec<(u64, String, String)>,
    /// All memory of nodes and images, without the pool's, in bytes.
    pub(super) taken: u64,
    /// Memory in the pool.
    pub(super) pool_total: u64,
    /// Of that, not in use.
    pub(super) pool_free: u64,
    /// Memory below 1 MiB that is not taken.
    pub(super) low_free: u64,
    /// Nodes, ended ones as well.
    pub(super) nodes: Vec<String>,
    /// Images.
    pub(super) images: Vec<String>,
}

impl Holdings {
    /// As they are now.
    pub(super) fn now() -> Result<Self, Finding> {
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
            taken: memory("taken_bytes"),
            pool_total: memory("pool_total_bytes"),
            pool_free: memory("pool_free_bytes"),
            low_free: memory("low_free_bytes"),
            nodes: names(&["ps", "--all", "--json"])?,
            images: names(&["image", "ls", "--json"])?,
        })
    }

    /// Fails unless they are as `earlier`.
    pub(super) fn assert_same(&self, earlier: &Self) -> Result<(), Finding> {
        Finding::unless(self == earlier, || {
            format!("Insula does not hold what it held:\n{self:?}\nbefore:\n{earlier:?}")
        })
    }

    /// Who has that core.
    pub(super) fn owner(&self, cpu: u32) -> &str {
        let found = self.cores.iter().find(|core| core.0 == u64::from(cpu));
        found.map_or("nobody", |core| &core.1)
    }
}

/// Fails unless Insula holds what it held.
pub(super) fn assert_unchanged(before: &Holdings) -> Result<(), Finding> {
    Holdings::now()?.assert_same(before)
}

/// Cores that the base runs on, as the kernel lists them.
pub(super) fn online() -> Result<String, Finding> {
    Ok(fs::read_to_string("/sys/devices/system/cpu/online")?
        .trim()
        .to_owned())
}

/// The base's free memory with its caches dropped, in KiB. Pages that its cores keep at hand to
/// allocate from count as free: MemFree leaves them out, and they come and go with every core.
pub(super) fn free_kib() -> Result<u64, Finding> {
    drop_caches()?;
    let meminfo = fs::read_to_string("/proc/meminfo")?;
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemFree:"));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    let free: u64 = number.unwrap_or_default().parse()?;
    Ok(free + PAGE_KIB * pages_at_hand(&fs::read_to_string("/proc/zoneinfo")?))
}

/// The sum of all `count: 5` in /proc/zoneinfo, one for each core and zone (proc_zoneinfo(5)).
fn pages_at_hand(zoneinfo: &str) -> u64 {
    let counts = zoneinfo
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("count:"));
    counts
        .filter_map(|count| count.trim().parse::<u64>().ok())
        .sum()
}

/// Empties the base's caches of files.
pub(super) fn drop_caches() -> Result<(), Finding> {
    nix::unistd::sync();
    Ok(fs::write("/proc/sys/vm/drop_caches", "3")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_at_hand_are_counted() {
        let zoneinfo = "Node 0, zone   DMA32\n  pagesets\n    cpu: 0\n              count: 250\n\
                        \x20             high:  378\n    cpu: 1\n              count: 7\n";
        assert_eq!(pages_at_hand(zoneinfo), 257);
    }
}
