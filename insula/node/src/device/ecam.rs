//! Physical address of the PCI configuration space (ECAM), from the firmware's MCFG table.
//!
//! Source: PCI Firmware Specification 3.3, section 4.1.2 "MCFG Table Description".

use insula_base::root::Root;

use crate::device::PciAddress;

const MCFG: &str = "/sys/firmware/acpi/tables/MCFG";
/// The table's header and 8 reserved bytes.
const HEAD_SIZE: usize = 44;
const ENTRY_SIZE: usize = 16;

/// Physical address of the configuration space of bus 0 of the function's segment; `None` if the
/// function's bus has no ECAM.
pub(super) fn base(root: &Root, address: PciAddress) -> Option<u64> {
    let table = std::fs::read(root.path(MCFG)).ok()?;
    let entries = table.get(HEAD_SIZE..)?.chunks_exact(ENTRY_SIZE);
    entries.into_iter().find_map(|entry| {
        let (base, rest) = entry.split_first_chunk()?;
        let (segment, rest) = rest.split_first_chunk()?;
        let covers = u16::from_le_bytes(*segment) == address.segment
            && (rest[0]..=rest[1]).contains(&address.bus);
        covers.then(|| u64::from_le_bytes(*base))
    })
}

#[cfg(test)]
mod tests {
    use insula_base::root::fake::Tree;

    use super::*;

    #[test]
    fn the_entry_that_covers_the_bus_counts() {
        let tree = Tree::new(&[(MCFG, "")]);
        let mut table = vec![0; HEAD_SIZE];
        for (base, segment, first, last) in
            [(0xb000_0000_u64, 0_u16, 0, 0x7f), (1 << 40, 2, 0x10, 0xff)]
        {
            table.extend(base.to_le_bytes());
            table.extend(segment.to_le_bytes());
            table.extend([first, last, 0, 0, 0, 0]);
        }
        std::fs::write(tree.root().path(MCFG), &table).unwrap();
        let of = |text: &str| base(&tree.root(), text.parse().unwrap());
        assert_eq!(of("0000:01:00.0"), Some(0xb000_0000));
        assert_eq!(of("0000:80:00.0"), None);
        assert_eq!(of("0002:21:00.0"), Some(1 << 40));
        assert_eq!(of("0002:01:00.0"), None);
        std::fs::write(tree.root().path(MCFG), &table[..20]).unwrap();
        assert_eq!(of("0000:01:00.0"), None);
    }
}
