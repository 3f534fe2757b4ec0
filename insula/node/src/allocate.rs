//! Allocating a node's memory.

use insula_abi as abi;
use insula_base::units::Size;
use insula_driver::{CallError, Driver, Memory};
use nix::errno::Errno;

use crate::memory::{LOW_END, LOW_FIRST, LOW_SIZE, MemorySpec};

/// Why a node's memory could not be allocated. Nothing stays allocated.
#[derive(Debug, thiserror::Error)]
pub enum AllocateError {
    /// The base cannot free as much there.
    #[error(
        "{asked} of memory could not be allocated{place}: the base has too much of it in use; \
         nothing was kept\n\
         request less, elsewhere or in smaller chunks (chunk=64M), or reserve it early after boot \
         with `insula machine reserve --memory`"
    )]
    NoMemory {
        /// The requested size.
        asked: Size,
        /// The requested place, as words to append.
        place: String,
    },
    /// No memory is free below 1 MiB.
    #[error(
        "{} of memory below 1 MiB, which every node needs, is not free; nothing was kept\n\
         stop another node: `insula machine info` shows how much there is",
        Size(LOW_SIZE)
    )]
    NoLowMemory,
    /// The module failed.
    #[error("allocating memory failed: {0}; nothing was kept")]
    Call(#[from] CallError),
}

/// Allocates a memory object: the part below 1 MiB first, then the requested memory.
pub(super) fn allocate_memory(
    driver: &Driver,
    specs: &[MemorySpec],
) -> Result<Memory, AllocateError> {
    let memory = driver.create_memory()?;
    memory
        .grow(&low_request())
        .map_err(|error| match error.errno {
            Errno::ENOMEM | Errno::EBUSY => AllocateError::NoLowMemory,
            _ => AllocateError::Call(error),
        })?;
    for spec in specs {
        memory
            .grow(&spec.to_request())
            .map_err(|error| match error.errno {
                Errno::ENOMEM | Errno::EBUSY => AllocateError::NoMemory {
                    asked: spec.size,
                    place: place(spec),
                },
                _ => AllocateError::Call(error),
            })?;
    }
    Ok(memory)
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
        let error = AllocateError::NoMemory {
            asked: spec.size,
            place: place(&spec),
        };
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
