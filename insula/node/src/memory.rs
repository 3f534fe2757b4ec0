//! Requests for memory as users write them: `512M,numa=1,below=4G,above=1G,chunk=64M`.

use std::fmt;
use std::str::FromStr;

use insula_abi as abi;
use insula_base::error::{Error, Kind};
use insula_base::serde_as_text;
use insula_base::topology::{BaseMemory, Topology};
use insula_base::units::{Size, SizeError};

/// Memory below 1 MiB for a Linux node, in bytes: its real-mode trampoline (0x7000 bytes,
/// `reserve_real_mode` in arch/x86/realmode/init.c) and two pages for tables that must be there.
pub const LOW_SIZE: u64 = 0x9000;
/// Start of that memory: below it the firmware has its data, and Linux never uses it
/// (`early_reserve_memory` in arch/x86/kernel/setup.c).
pub const LOW_FIRST: u64 = 64 << 10;
/// End of that memory: above it are video memory and ROMs.
pub const LOW_END: u64 = 640 << 10;

/// An amount of memory, with constraints on its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySpec {
    /// The amount.
    pub size: Size,
    /// The NUMA node.
    pub numa_node: Option<u32>,
    /// All of it is below this physical address.
    pub below: Option<Size>,
    /// All of it is at or above this physical address.
    pub above: Option<Size>,
    /// Largest size of a chunk.
    pub chunk: Option<Size>,
}

/// Why a text is no request for memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemorySpecError {
    /// A size or address is wrong.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// The NUMA node is not a number.
    #[error("'{0}' is not a NUMA node: give its number, such as numa=0")]
    NumaNode(String),
    /// An unknown constraint.
    #[error("'{0}' is not one of numa=NODE, below=ADDRESS, above=ADDRESS, chunk=SIZE")]
    Unknown(String),
    /// A constraint is repeated.
    #[error("'{0}' is given twice")]
    Twice(String),
    /// The size is not a multiple of the granule.
    #[error(
        "memory is allocated in multiples of {}: {requested} is not one, the next is {next}",
        GRANULE
    )]
    Granule {
        /// The size requested.
        requested: Size,
        /// The next larger multiple.
        next: Size,
    },
    /// The constraints leave no such range.
    #[error("{requested} does not fit between {above} and {below}: widen the range")]
    Range {
        /// The size requested.
        requested: Size,
        /// Lower bound.
        above: Size,
        /// Upper bound.
        below: Size,
    },
}

const GRANULE: Size = Size(abi::GRANULE);

impl FromStr for MemorySpec {
    type Err = MemorySpecError;

    fn from_str(text: &str) -> Result<Self, MemorySpecError> {
        let mut parts = text.split(',');
        let size = parts.next().unwrap_or_default().parse()?;
        let mut spec = Self {
            size,
            ..Self::default()
        };
        for part in parts {
            spec.set(part)?;
        }
        spec.check()?;
        Ok(spec)
    }
}

impl fmt::Display for MemorySpec {
    /// The form that is parsed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.size.exact())?;
        if let Some(node) = self.numa_node {
            write!(f, ",numa={node}")?;
        }
        let sizes = [
            ("below", self.below),
            ("above", self.above),
            ("chunk", self.chunk),
        ];
        let mut given = sizes.iter().filter_map(|(key, size)| Some((key, (*size)?)));
        given.try_for_each(|(key, size)| write!(f, ",{key}={}", size.exact()))
    }
}

serde_as_text!(
    MemorySpec,
    "^[0-9][0-9A-Za-z]*(,(numa|below|above|chunk)=[0-9][0-9A-Za-z]*)*$"
);

impl MemorySpec {
    fn set(&mut self, part: &str) -> Result<(), MemorySpecError> {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let twice = match key {
            "numa" => {
                let node = value
                    .parse::<u32>()
                    .ok()
                    .filter(|&node| i32::try_from(node).is_ok());
                let node = node.ok_or_else(|| MemorySpecError::NumaNode(value.to_owned()))?;
                self.numa_node.replace(node).is_some()
            }
            "below" => self.below.replace(value.parse()?).is_some(),
            "above" => self.above.replace(value.parse()?).is_some(),
            "chunk" => self.chunk.replace(value.parse()?).is_some(),
            _ => return Err(MemorySpecError::Unknown(part.to_owned())),
        };
        if twice {
            return Err(MemorySpecError::Twice(key.to_owned()));
        }
        Ok(())
    }

    fn check(&self) -> Result<(), MemorySpecError> {
        for requested in [Some(self.size), self.chunk].into_iter().flatten() {
            if requested.0 == 0 || !requested.0.is_multiple_of(abi::GRANULE) {
                let next = requested.0.max(1).checked_next_multiple_of(abi::GRANULE);
                let next = Size(next.unwrap_or(u64::MAX - (abi::GRANULE - 1)));
                return Err(MemorySpecError::Granule { requested, next });
            }
        }
        let above = self.above.unwrap_or_default();
        let below = self.below.unwrap_or(Size(u64::MAX));
        // The first granule contains the memory below 1 MiB, which is requested separately.
        let first = above
            .0
            .max(abi::GRANULE)
            .checked_next_multiple_of(abi::GRANULE);
        let last = below.0 - below.0 % abi::GRANULE;
        match first.and_then(|first| last.checked_sub(first)) {
            Some(room) if room >= self.size.0 => Ok(()),
            _ => Err(MemorySpecError::Range {
                requested: self.size,
                above,
                below,
            }),
        }
    }

    /// The request as the module takes it.
    #[must_use]
    pub fn to_request(&self) -> abi::Request {
        let numa_node = self.numa_node.and_then(|node| i32::try_from(node).ok());
        abi::Request {
            size: self.size.0,
            min_phys: self
                .above
                .unwrap_or_default()
                .0
                .next_multiple_of(abi::GRANULE),
            max_phys: self
                .below
                .map_or(0, |below| below.0 - below.0 % abi::GRANULE),
            chunk_max: self.chunk.unwrap_or_default().0,
            numa_node: numa_node.unwrap_or(abi::NUMA_ANY),
            flags: 0,
        }
    }
}

/// Refuses requests that cannot be met, before anything is allocated. A request that passes may
/// still fail: how much of the base's memory can be freed is known only by trying.
///
/// # Errors
/// Why it is not available; nothing was touched.
pub fn check_available(
    specs: &[MemorySpec],
    topology: &Topology,
    base: Option<BaseMemory>,
    pool_free: u64,
) -> Result<(), Error> {
    let total = |specs: &mut dyn Iterator<Item = &MemorySpec>| {
        Size(specs.fold(0_u64, |sum, spec| sum.saturating_add(spec.size.0)))
    };
    for node in specs.iter().filter_map(|spec| spec.numa_node) {
        let there = topology.numa_nodes.get(&node);
        let there = Size(there.ok_or_else(|| no_numa_node(node))?.total);
        let requested = total(&mut specs.iter().filter(|spec| spec.numa_node == Some(node)));
        if requested.0 > there.0.saturating_add(pool_free) {
            return Err(numa_too_much(requested, node, there));
        }
    }
    let requested = total(&mut specs.iter());
    let available = base.map_or(u64::MAX, |base| base.available.saturating_add(pool_free));
    if requested.0 > available {
        return Err(too_much(requested, Size(available)));
    }
    Ok(())
}

fn refused(what: String) -> Error {
    Error::new(what).untouched()
}

fn too_much(requested: Size, available: Size) -> Error {
    refused(format!(
        "{requested} of memory requested, {available} available"
    ))
    .with_kind(Kind::Unavailable)
    .hint("request less, or free some: `insula machine info` shows what nodes and images use")
}

fn no_numa_node(requested: u32) -> Error {
    refused(format!("there is no NUMA node {requested}"))
        .hint("`insula machine info` lists the NUMA nodes")
}

fn numa_too_much(requested: Size, node: u32, there: Size) -> Error {
    refused(format!(
        "{requested} of memory requested on NUMA node {node}, which has {there} in total"
    ))
    .hint("request less, or spread it: give --memory once for each node")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use insula_base::topology::NumaMemory;
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<MemorySpec, MemorySpecError> {
        text.parse()
    }

    #[test]
    fn full_request() {
        let request = parse("512M,numa=1,below=0x100000000,above=1G,chunk=64M")
            .unwrap()
            .to_request();
        let expected = abi::Request {
            size: 512 << 20,
            min_phys: 1 << 30,
            max_phys: 4 << 30,
            chunk_max: 64 << 20,
            numa_node: 1,
            flags: 0,
        };
        assert_eq!(request, expected);
        let plain = parse("2M").unwrap().to_request();
        assert_eq!(
            (plain.min_phys, plain.max_phys, plain.numa_node),
            (0, 0, abi::NUMA_ANY)
        );
    }

    #[test]
    fn bounds_are_rounded_inwards() {
        let request = parse("2M,above=3M,below=7M").unwrap().to_request();
        assert_eq!((request.min_phys, request.max_phys), (4 << 20, 6 << 20));
    }

    #[test]
    fn invalid_requests_are_refused_with_a_reason() {
        let refusals = [
            "",
            "lots",
            "3M",
            "0",
            "2M,chunk=1M",
            "2M,numa=x",
            "2M,numa=4294967295",
            "2M,size=1",
            "2M,below=2M",
            "2M,below=1M",
            "8M,above=4M,below=8M",
            "2M,above=4M,above=6M",
            "2M,",
            "2M,below",
            "2M,above=18446744073709551615",
        ];
        let reasons = refusals.map(|text| format!("{text}: {}", parse(text).unwrap_err()));
        insta::assert_snapshot!(reasons.join("\n"));
    }

    #[test]
    fn more_than_there_is_is_refused() {
        let specs = [parse("1G,numa=0").unwrap(), parse("1G").unwrap()];
        let node = NumaMemory {
            total: 4 << 30,
            free: 0,
        };
        let topology = Topology {
            numa_nodes: BTreeMap::from([(0, node)]),
            ..Default::default()
        };
        let base = |available| {
            Some(BaseMemory {
                total: 8 << 30,
                available,
            })
        };
        let check = |specs: &[MemorySpec], base, pool| {
            let checked = check_available(specs, &topology, base, pool);
            checked.map_err(|error| error.what)
        };
        check(&specs, base(2 << 30), 0).unwrap();
        check(&specs, base(1 << 30), 1 << 30).unwrap();
        check(&specs, None, 0).unwrap();
        let refused = check(&specs, base(1 << 30), 0).unwrap_err();
        assert_eq!(refused, "2G of memory requested, 1G available");
        let elsewhere = [parse("2M,numa=3").unwrap()];
        let refused = check(&elsewhere, None, 0).unwrap_err();
        assert_eq!(refused, "there is no NUMA node 3");
        let large = [parse("5G,numa=0").unwrap()];
        let refused = check(&large, None, 0).unwrap_err();
        let why = "5G of memory requested on NUMA node 0, which has 4G in total";
        assert_eq!(refused, why);
    }

    /// A request as a user might write it, mostly invalid.
    const REQUEST: &str = concat!(
        "[0-9]{1,20}[KMGT]?",
        "(,(numa|below|above|chunk)=[0-9]{1,20}[KMG]?){0,3}"
    );

    proptest! {
        #[test]
        fn no_text_panics_and_accepted_sizes_are_whole_granules(text in REQUEST) {
            if let Ok(spec) = parse(&text) {
                let request = spec.to_request();
                let room = request.max_phys.checked_sub(request.min_phys);
                prop_assert!(request.size > 0 && request.size % abi::GRANULE == 0);
                prop_assert!(request.max_phys == 0 || room.unwrap() >= request.size);
            }
        }
    }
}
