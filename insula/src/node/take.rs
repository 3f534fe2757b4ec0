//! Taking a node's memory.

use insula_abi as abi;
use nix::errno::Errno;

use crate::driver::{CallError, Driver, Memory};
use crate::memory::{LOW_END, LOW_FIRST, LOW_SIZE, MemorySpec};
use crate::units::Size;

/// Why a node's memory could not be taken. All of it has been given back.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// The base cannot free so much there.
    #[error(
        "{asked} of memory could not be taken{place}: the base has too much of it in use; nothing \
         was kept\n\
         ask for less or elsewhere, in smaller pieces (chunk=64M), or reserve it early after boot \
         with `insula machine reserve --memory`"
    )]
    NoMemory {
        /// How much.
        asked: Size,
        /// Where, as words to follow.
        place: String,
    },
    /// Nothing is left below 1 MiB.
    #[error(
        "no {} of memory below 1 MiB is left, which every node needs; nothing was kept\n\
         stop another node: `insula machine info` shows how much there is",
        Size(LOW_SIZE)
    )]
    NoLowMemory,
    /// The module failed.
    #[error("taking memory failed: {0}; nothing was kept")]
    Call(#[from] CallError),
}

/// A memory object with the stretch below 1 MiB first, then what was asked for.
pub(super) fn take_memory(driver: &Driver, specs: &[MemorySpec]) -> Result<Memory, TakeError> {
    let memory = driver.create_memory()?;
    memory
        .grow(&low_request())
        .map_err(|error| match error.errno {
            Errno::ENOMEM | Errno::EBUSY => TakeError::NoLowMemory,
            _ => TakeError::Call(error),
        })?;
    for spec in specs {
        memory
            .grow(&spec.to_request())
            .map_err(|error| match error.errno {
                Errno::ENOMEM | Errno::EBUSY => TakeError::NoMemory {
                    asked: spec.size,
                    place: place(spec),
                },
                _ => TakeError::Call(error),
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
    fn the_place_is_told() {
        let spec: MemorySpec = "2M,numa=1,below=4G,above=1G".parse().unwrap();
        let error = TakeError::NoMemory {
            asked: spec.size,
            place: place(&spec),
        };
        let first = error.to_string().lines().next().unwrap().to_owned();
        assert_eq!(
            first,
            "2M of memory could not be taken on NUMA node 1 above 1G below 4G: the base has too \
             much of it in use; nothing was kept"
        );
        assert_eq!(place(&"2M".parse().unwrap()), "");
    }

    #[test]
    fn the_low_stretch_is_low_by_the_abis_rule() {
        let request = low_request();
        assert!(request.max_phys <= abi::LOW_LIMIT && request.size.is_multiple_of(4096));
    }
}
