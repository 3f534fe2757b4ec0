//! The pool: cores and memory taken ahead of need, so that starts do not pay for taking.

use insula_abi as abi;
use nix::errno::Errno;

use crate::cores::{Chosen, CoreError, CoreRequest, View};
use crate::driver::{CallError, Driver};
use crate::memory::{MemoryError, MemorySpec, check_available};
use crate::root::Root;
use crate::topology::{BaseMemory, Topology};

/// Why the pool was not changed.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The cores cannot be had.
    #[error(transparent)]
    Cores(#[from] CoreError),
    /// The memory cannot be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The base cannot free so much.
    #[error(
        "{0} of memory could not be taken: the base has too much of it in use; the pool was left \
         as it is\n\
         ask for less, or in smaller pieces (chunk=64M)"
    )]
    NoMemory(crate::units::Size),
    /// Somebody else was faster.
    #[error(
        "a core was taken by somebody else just now; the pool was left as it is\n\
         try again"
    )]
    Contended,
    /// The module failed.
    #[error("the module failed: {0}; the pool was left as it is")]
    Call(#[from] CallError),
}

/// Takes cores and memory into the pool, all or nothing. Answers the cores taken.
///
/// # Errors
/// [`PoolError`].
pub fn reserve(
    driver: &Driver,
    root: &Root,
    cores: Option<&CoreRequest>,
    memory: Option<MemorySpec>,
) -> Result<Vec<Chosen>, PoolError> {
    let topology = Topology::read(root);
    let (_, cpus) = driver.machine()?;
    let numa_node = memory.and_then(|spec| spec.numa_node);
    let view = View::new(&topology, &of_the_base(&cpus));
    let chosen = cores.map_or(Ok(Vec::new()), |cores| view.choose(cores, numa_node))?;
    check_available(memory.as_slice(), &topology, BaseMemory::read(root), 0)?;
    let numbers: Vec<u32> = chosen.iter().map(|one| one.cpu).collect();
    let request = memory.map_or(NO_MEMORY, |spec| spec.to_request());
    driver
        .reserve(&numbers, request)
        .map_err(|error| match (error.errno, memory) {
            (Errno::ENOMEM, Some(spec)) => PoolError::NoMemory(spec.size),
            (Errno::EBUSY, _) => PoolError::Contended,
            _ => PoolError::Call(error),
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

/// What is in the pool already cannot be reserved again: it looks like a node's.
fn of_the_base(cpus: &[abi::Cpu]) -> Vec<abi::Cpu> {
    let seen = |cpu: &abi::Cpu| match cpu.owner {
        abi::CpuOwner::POOL => abi::Cpu {
            owner: abi::CpuOwner::NODE,
            ..*cpu
        },
        _ => *cpu,
    };
    cpus.iter().map(seen).collect()
}

/// Gives back all of the pool that no node and no image uses.
///
/// # Errors
/// [`PoolError::Call`].
pub fn release(driver: &Driver) -> Result<(), PoolError> {
    Ok(driver.release()?)
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
        let owners = of_the_base(&cpus)
            .iter()
            .map(|cpu| cpu.owner)
            .collect::<Vec<_>>();
        assert_eq!(owners, [abi::CpuOwner::NODE, abi::CpuOwner::BASE]);
    }
}
