//! The pool: cores and memory reserved in advance, so that starting a node need not wait for them.

use insula_abi as abi;
use insula_base::error::Error;
use insula_base::root::Root;
use insula_base::topology::{BaseMemory, Topology};
use insula_base::units::Size;
use insula_driver::{CallError, Driver};
use insula_node::cores::{ChosenCore, CoreRequest, Cores};
use insula_node::memory::{MemorySpec, check_available};
use nix::errno::Errno;

/// What every error of the pool leaves alone.
const UNCHANGED: &str = "the pool was left unchanged";

/// Reserves cores and memory in the pool, all or nothing. Returns the cores.
///
/// # Errors
/// When cores or memory are not available, or the module fails; the pool is unchanged.
pub fn reserve(
    driver: &Driver,
    root: &Root,
    cores: Option<&CoreRequest>,
    memory: Option<MemorySpec>,
) -> Result<Vec<ChosenCore>, Error> {
    let topology = Topology::read(root);
    let (_, cpus) = driver.machine().map_err(failed)?;
    let numa_node = memory.and_then(|spec| spec.numa_node);
    let view = Cores::new(&topology, &without_pool(&cpus));
    let chosen = cores.map_or(Ok(Vec::new()), |cores| view.choose(cores, numa_node));
    let chosen = chosen?;
    check_available(memory.as_slice(), &topology, BaseMemory::read(root), 0)?;
    let numbers: Vec<u32> = chosen.iter().map(|one| one.cpu).collect();
    let request = memory.map_or(NO_MEMORY, |spec| spec.to_request());
    driver
        .reserve(&numbers, request)
        .map_err(|error| match (error.errno, memory) {
            (Errno::ENOMEM, Some(spec)) => no_memory(spec.size),
            (Errno::EBUSY, _) => contended(),
            _ => failed(error),
        })?;
    Ok(chosen)
}

const NO_MEMORY: abi::Request = abi::Request {
    size: 0,
    min_phys: 0,
    max_phys: 0,
    chunk_max: 0,
    numa_node: abi::NUMA_ANY,
    flags: 0,
};

/// Cores that are in the pool already cannot be reserved again: they are shown as a node's.
fn without_pool(cpus: &[abi::Cpu]) -> Vec<abi::Cpu> {
    let seen = |cpu: &abi::Cpu| match cpu.owner {
        abi::CpuOwner::POOL => abi::Cpu {
            owner: abi::CpuOwner::NODE,
            ..*cpu
        },
        _ => *cpu,
    };
    cpus.iter().map(seen).collect()
}

/// Releases everything in the pool that no node and no image uses.
///
/// # Errors
/// The module's.
pub fn release(driver: &Driver) -> Result<(), Error> {
    driver.release().map_err(failed)
}

/// The error for more contiguous memory than the base can free.
fn no_memory(size: Size) -> Error {
    let what = format!("{size} of memory could not be allocated: the base uses too much of it");
    Error::new(what)
        .leaving(UNCHANGED)
        .hint("request less, or smaller chunks (chunk=64M)")
}

/// The error for a core that another command took first.
fn contended() -> Error {
    Error::new("a core was taken by another command at the same time")
        .leaving(UNCHANGED)
        .hint("try again")
}

fn failed(source: CallError) -> Error {
    Error::new("the module failed")
        .because(source)
        .leaving(UNCHANGED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pooled_cores_are_not_reserved_twice() {
        let cpu = |cpu, owner| abi::Cpu {
            cpu,
            apic_id: cpu,
            owner,
            node: 0,
        };
        let cpus = [cpu(1, abi::CpuOwner::POOL), cpu(2, abi::CpuOwner::BASE)];
        let owners = without_pool(&cpus)
            .iter()
            .map(|cpu| cpu.owner)
            .collect::<Vec<_>>();
        assert_eq!(owners, [abi::CpuOwner::NODE, abi::CpuOwner::BASE]);
    }
}
