//! Allocating a node's memory.

use insula_abi as abi;
use insula_base::error::Error;
use insula_base::units::Size;
use insula_driver::{CallError, Driver, Memory};
use nix::errno::Errno;

use crate::memory::{LOW_END, LOW_FIRST, LOW_SIZE, MemorySpec};

/// Allocates a memory object: the part below 1 MiB first, then the requested memory.
pub(super) fn allocate_memory(driver: &Driver, specs: &[MemorySpec]) -> Result<Memory, Error> {
    let memory = driver.create_memory().map_err(failed)?;
    memory
        .grow(&low_request())
        .map_err(|error| match error.errno {
            Errno::ENOMEM | Errno::EBUSY => no_low_memory(),
            _ => failed(error),
        })?;
    for spec in specs {
        memory
            .grow(&spec.to_request())
            .map_err(|error| match error.errno {
                Errno::ENOMEM | Errno::EBUSY => no_memory(spec),
                _ => failed(error),
            })?;
    }
    Ok(memory)
}

/// The base cannot free as much there.
fn no_memory(spec: &MemorySpec) -> Error {
    let (asked, place) = (spec.size, place(spec));
    Error::new(format!(
        "{asked} of memory could not be allocated{place}: the base has too much of it in use"
    ))
    .nothing_kept()
    .hint(
        "request less, elsewhere or in smaller chunks (chunk=64M), or reserve it early after boot \
         with `insula machine reserve --memory`",
    )
}

fn no_low_memory() -> Error {
    let size = Size(LOW_SIZE);
    Error::new(format!(
        "{size} of memory below 1 MiB, which every node needs, is not free"
    ))
    .nothing_kept()
    .hint("stop another node: `insula machine info` shows how much there is")
}

fn failed(error: CallError) -> Error {
    Error::new("allocating memory failed")
        .because(error)
        .nothing_kept()
}

fn low_request() -> abi::Request {
    abi::Request {
        size: LOW_SIZE,
        min_phys: LOW_FIRST,
        max_phys: LOW_END,
        chunk_max: 0,
        numa_node: abi::NUMA_ANY,
        flags: 0,
    }
}

fn place(spec: &MemorySpec) -> String {
    let node = spec.numa_node.map(|node| format!(" on NUMA node {node}"));
    let above = spec.above.map(|address| format!(" above {address}"));
    let below = spec.below.map(|address| format!(" below {address}"));
    [node, above, below].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_in_the_message() {
        let spec: MemorySpec = "2M,numa=1,below=4G,above=1G".parse().unwrap();
        let error = no_memory(&spec);
        let first = error.to_string().lines().next().unwrap().to_owned();
        assert_eq!(
            first,
            "2M of memory could not be allocated on NUMA node 1 above 1G below 4G: the base has \
             too much of it in use; nothing was kept"
        );
        assert_eq!(place(&"2M".parse().unwrap()), "");
    }

    #[test]
    fn the_low_request_meets_the_abis_limit() {
        let request = low_request();
        assert!(request.max_phys <= abi::LOWMEM_LIMIT && request.size.is_multiple_of(4096));
    }
}
