//! An empty overlay in QEMU's format for disks (qcow2, version 3): all of it is read from the file below
//! until it is written.
//!
//! Written here, since that takes four tables, and `qemu-img` is in another package than the daemon that
//! serves disks.
//!
//! Source: `docs/interop/qcow2.txt` of QEMU.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const MAGIC: [u8; 4] = *b"QFI\xfb";
const VERSION: u32 = 3;
/// Bytes of the header without extensions.
const HEADER_SIZE: u32 = 104;
const CLUSTER_BITS: u32 = 16;
const CLUSTER: u64 = 1 << CLUSTER_BITS;
/// Bytes of an entry of a table.
const ENTRY: u64 = 8;
/// Bytes of the disk for which an entry of the first table stands: that of a cluster of entries.
const PER_ENTRY: u64 = CLUSTER / ENTRY * CLUSTER;
/// Reference counts have 16 bits.
const REFCOUNT_ORDER: u32 = 4;
const REFCOUNTS_PER_CLUSTER: u64 = CLUSTER / 2;
/// QEMU reads no larger first table.
const TABLE_MAX: u64 = 32 << 20;
/// Header extension: the format of the file below.
const BACKING_FORMAT: u32 = 0xe279_2aca;
/// Longest name of the file below.
const NAME_MAX: usize = 1023;
/// Sectors, of which a disk consists.
const SECTOR: u64 = 512;

/// Clusters before the first table: header, table of reference counts, reference counts.
const REFCOUNT_TABLE: u64 = 1;
const REFCOUNTS: u64 = 2;
const FIRST_TABLE: u64 = 3;

/// The bytes of an empty overlay over the raw file `base` of `size` bytes.
///
/// # Errors
/// When the format cannot describe it.
pub(super) fn empty_overlay(base: &Path, size: u64) -> io::Result<Vec<u8>> {
    let name = base.as_os_str().as_bytes();
    let entries = size.div_ceil(PER_ENTRY).max(1);
    if name.len() > NAME_MAX || entries * ENTRY > TABLE_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let clusters = FIRST_TABLE + (entries * ENTRY).div_ceil(CLUSTER);
    debug_assert!(
        clusters <= REFCOUNTS_PER_CLUSTER,
        "one cluster counts them all"
    );
    let mut bytes = header(name, size.next_multiple_of(SECTOR), entries as u32);
    bytes.resize((clusters * CLUSTER) as usize, 0);
    let mut put = |at: u64, value: &[u8]| {
        bytes[at as usize..at as usize + value.len()].copy_from_slice(value);
    };
    put(
        REFCOUNT_TABLE * CLUSTER,
        &(REFCOUNTS * CLUSTER).to_be_bytes(),
    );
    for cluster in 0..clusters {
        put(REFCOUNTS * CLUSTER + 2 * cluster, &1_u16.to_be_bytes());
    }
    Ok(bytes)
}

fn header(base: &[u8], size: u64, entries: u32) -> Vec<u8> {
    let format = *b"raw\0\0\0\0\0";
    let extensions = [
        &BACKING_FORMAT.to_be_bytes()[..],
        &3_u32.to_be_bytes(),
        &format,
        // The last one.
        &[0; 8],
    ]
    .concat();
    let name_offset = u64::from(HEADER_SIZE) + extensions.len() as u64;
    [
        &MAGIC[..],
        &VERSION.to_be_bytes(),
        &name_offset.to_be_bytes(),
        &(base.len() as u32).to_be_bytes(),
        &CLUSTER_BITS.to_be_bytes(),
        &size.to_be_bytes(),
        // Not encrypted.
        &0_u32.to_be_bytes(),
        &entries.to_be_bytes(),
        &(FIRST_TABLE * CLUSTER).to_be_bytes(),
        &(REFCOUNT_TABLE * CLUSTER).to_be_bytes(),
        // Clusters of that table.
        &1_u32.to_be_bytes(),
        // No snapshots, and none of the features: incompatible, compatible, cleared by others.
        &[0; 4 + 8 + 3 * 8],
        &REFCOUNT_ORDER.to_be_bytes(),
        &HEADER_SIZE.to_be_bytes(),
        &extensions,
        base,
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(bytes: &[u8], at: usize) -> u64 {
        u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn the_header_says_where_all_is() {
        let bytes = empty_overlay(Path::new("/below"), 1000).unwrap();
        assert_eq!(bytes.len() as u64, 4 * CLUSTER);
        assert_eq!(word(&bytes, 24), 1024, "size");
        assert_eq!(word(&bytes, 40), 3 * CLUSTER, "first table");
        assert_eq!(word(&bytes, 48), CLUSTER, "table of reference counts");
        assert_eq!(word(&bytes, CLUSTER as usize), 2 * CLUSTER);
        assert_eq!(
            word(&bytes, 2 * CLUSTER as usize),
            0x0001_0001_0001_0001,
            "references to four clusters"
        );
        let at = word(&bytes, 8) as usize;
        assert_eq!(&bytes[at..at + 6], b"/below");
        assert_eq!(bytes[96..104], [0, 0, 0, 4, 0, 0, 0, 104]);
    }

    #[test]
    fn large_disks_have_larger_tables() {
        let bytes = empty_overlay(Path::new("/below"), 8 << 40).unwrap();
        assert_eq!(bytes.len() as u64, (3 + 2) * CLUSTER);
        assert!(empty_overlay(Path::new("/below"), u64::MAX).is_err());
        let long = "x".repeat(1024);
        assert!(empty_overlay(Path::new(&long), 0).is_err());
    }
}
