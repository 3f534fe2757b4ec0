//! The memory of Linux' ramoops (fs/pstore/ram.c): records that survive a reset, which the next kernel
//! shows as files of pstore.

use insula_base::root::Root;
use std::ops::Range;
use std::time::{Duration, SystemTime};
use thiserror::Error as ThisError;

/// Its parameters; it sets them also when the firmware has named the memory.
const PARAMETERS: &str = "/sys/module/ramoops/parameters";
/// `PERSISTENT_RAM_SIG` of fs/pstore/ram_core.c.
pub(super) const SIGNATURE: u32 = 0x4347_4244;
/// Size of `struct persistent_ram_buffer` without its data: signature, start and size.
const HEADER_SIZE: usize = 12;
/// Least size of a zone: what is found, and some lines of the log.
const ZONE_MIN: u64 = 4096;

/// Why there is no memory of it that can be written.
#[derive(Debug, ThisError, PartialEq, Eq)]
pub(crate) enum RamoopsError {
    /// It is not loaded, or has no memory.
    #[error("ramoops is not loaded")]
    Absent,
    /// It adds check bytes, which are not made here.
    #[error("ramoops is loaded with ecc={0}")]
    Ecc(u64),
    /// There is no room for a record.
    #[error("ramoops has records of {0} bytes: less than 4096")]
    Small(u64),
    /// They are laid out in an unknown way.
    #[error("no record of ramoops is where its last one must be")]
    Unknown,
}

/// Its memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ramoops {
    /// All of it, by physical addresses.
    pub(crate) memory: Range<u64>,
    /// The last of the zones for records of the kernel's log: the kernel itself begins with the first. Their
    /// size is even only since Linux 6.8 and in stable kernels of that time, so there are two places for it.
    pub(crate) zones: [Range<u64>; 2],
}

impl Ramoops {
    /// That of the base.
    pub(crate) fn of_base(root: &Root) -> Result<Self, RamoopsError> {
        let value = |name: &str| root.value::<u64>(&format!("{PARAMETERS}/{name}"));
        let known = |name| value(name).filter(|value| *value > 0);
        let start = known("mem_address").ok_or(RamoopsError::Absent)?;
        let size = known("mem_size").ok_or(RamoopsError::Absent)?;
        if let Some(ecc) = known("ecc") {
            return Err(RamoopsError::Ecc(ecc));
        }
        let power_of_two = |name| value(name).filter(|size| *size > 0).map_or(0, floor);
        let others = ["console_size", "ftrace_size", "pmsg_size"].map(power_of_two);
        let records = others
            .iter()
            .fold(size, |left, size| left.saturating_sub(*size));
        let record = power_of_two("record_size");
        let small = RamoopsError::Small(record);
        let count = records.checked_div(record).filter(|count| *count > 0);
        let Some(count) = count else {
            return Err(small);
        };
        // What is left over is shared among the zones.
        let zone = records / count;
        if zone < ZONE_MIN {
            return Err(small);
        }
        let last = |zone| {
            let first = start + (count - 1) * zone;
            first..first + zone
        };
        Ok(Self {
            memory: start..start + size,
            zones: [zone / 2 * 2, zone].map(last),
        })
    }
}

/// A zone for a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Zone(pub(crate) Range<u64>);

impl Zone {
    /// Most bytes of a record's text.
    pub(crate) fn text_max(&self, time: SystemTime) -> usize {
        let size = (self.0.end - self.0.start) as usize;
        size - HEADER_SIZE - first_line(time).len()
    }

    /// The bytes of the zone with a record: its header and data. What does not fit is cut off.
    pub(crate) fn record(&self, time: SystemTime, text: &str) -> Vec<u8> {
        let text = &text.as_bytes()[..text.len().min(self.text_max(time))];
        let data = [first_line(time).as_bytes(), text].concat();
        let (start, size) = (0_u32, data.len() as u32);
        let header = [SIGNATURE, start, size].map(u32::to_le_bytes);
        [header.as_flattened(), &data].concat()
    }
}

/// The greatest power of two that is not greater.
fn floor(size: u64) -> u64 {
    1 << size.ilog2()
}

/// First line of a record (`RAMOOPS_KERNMSG_HDR`): its time; it is not compressed.
fn first_line(time: SystemTime) -> String {
    let time = time.duration_since(SystemTime::UNIX_EPOCH);
    let time = time.unwrap_or(Duration::ZERO);
    format!("===={}.{:06}-D\n", time.as_secs(), time.subsec_micros())
}

#[cfg(test)]
mod tests {
    use super::*;
    use insula_base::root::fake::Tree;

    fn tree(values: &[(&str, u64)]) -> Tree {
        let tree = Tree::new(&[]);
        for (name, value) in values {
            tree.add(&[(&format!("{PARAMETERS}/{name}"), &format!("{value}\n"))]);
        }
        tree
    }

    const USUAL: [(&str, u64); 7] = [
        ("mem_address", 0x600_0000),
        ("mem_size", 0x10_0000),
        ("record_size", 0x2_0000),
        ("console_size", 4096),
        ("ftrace_size", 4096),
        ("pmsg_size", 4096),
        ("ecc", 0),
    ];

    #[test]
    fn zones_are_those_of_the_kernel() {
        let found = Ramoops::of_base(&tree(&USUAL).root()).unwrap();
        assert_eq!(found.memory, 0x600_0000..0x610_0000);
        // 0xfd000 bytes for records of 0x20000: 7 zones of 0x24249 bytes.
        let of_size = |size: u64| 0x600_0000 + 6 * size..0x600_0000 + 7 * size;
        assert_eq!(found.zones, [0x2_4248, 0x2_4249].map(of_size));
    }

    #[test]
    fn sizes_are_rounded_down() {
        let mut values = USUAL;
        values[2].1 = 0x3_0000;
        values[3].1 = 5000;
        let found = Ramoops::of_base(&tree(&values).root()).unwrap();
        assert_eq!(found.zones[1].end - found.zones[1].start, 0xf_d000 / 7);
    }

    #[test]
    fn what_cannot_be_written_is_refused() {
        let refusal = |values: &[_]| Ramoops::of_base(&tree(values).root()).unwrap_err();
        assert_eq!(refusal(&[]), RamoopsError::Absent);
        assert_eq!(
            refusal(&[("mem_address", 0), ("mem_size", 0)]),
            RamoopsError::Absent
        );
        let with = |at: usize, value| {
            let mut values = USUAL;
            values[at].1 = value;
            refusal(&values)
        };
        assert_eq!(with(6, 16), RamoopsError::Ecc(16));
        assert_eq!(with(2, 0), RamoopsError::Small(0));
        assert_eq!(with(2, 2048), RamoopsError::Small(2048));
        assert_eq!(with(2, 0x20_0000), RamoopsError::Small(0x20_0000));
    }

    #[test]
    fn a_record_is_that_of_the_kernel() {
        let zone = Zone(0x1000..0x2_1000);
        let time = SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_000_017);
        let bytes = zone.record(time, "text\n");
        assert_eq!(&bytes[..4], b"DBGC");
        assert_eq!(bytes[4..8], [0; 4]);
        let data = b"====1700000000.000017-D\ntext\n";
        assert_eq!(bytes[8..12], (data.len() as u32).to_le_bytes());
        assert_eq!(&bytes[12..], data);
        let long = "x".repeat(1 << 20);
        assert_eq!(zone.record(time, &long).len(), 0x2_0000);
    }
}
