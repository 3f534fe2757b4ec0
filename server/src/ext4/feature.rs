//! Features, and which of them are supported (Documentation/filesystems/ext4/super.rst of Linux).

use super::error::{Error, Result};

/// Of the compatible ones, those that are used. The others can be ignored.
pub(super) mod compat {
    pub(in crate::ext4) const HAS_JOURNAL: u32 = 0x4;
    /// Backups of the superblock are elsewhere.
    pub(in crate::ext4) const SPARSE_SUPER2: u32 = 0x200;
}

/// Those without which the file system cannot be read.
pub(super) mod incompat {
    pub(in crate::ext4) const FILETYPE: u32 = 0x2;
    /// The journal has to be replayed.
    pub(in crate::ext4) const RECOVER: u32 = 0x4;
    pub(in crate::ext4) const EXTENTS: u32 = 0x40;
    /// Blocks have 48-bit numbers, and group descriptors 64 bytes.
    pub(in crate::ext4) const WIDE: u32 = 0x80;
    pub(in crate::ext4) const FLEX_BG: u32 = 0x200;
    /// The seed of checksums is stored.
    pub(in crate::ext4) const CSUM_SEED: u32 = 0x2000;
}

/// Those without which it can be read, but not written.
pub(super) mod read_only {
    pub(in crate::ext4) const SPARSE_SUPER: u32 = 0x1;
    pub(in crate::ext4) const LARGE_FILE: u32 = 0x2;
    pub(in crate::ext4) const HUGE_FILE: u32 = 0x8;
    /// Group descriptors have checksums (`uninit_bg`).
    pub(in crate::ext4) const GDT_CSUM: u32 = 0x10;
    /// Directories can have more subdirectories than links can be counted.
    pub(in crate::ext4) const DIR_NLINK: u32 = 0x20;
    pub(in crate::ext4) const EXTRA_ISIZE: u32 = 0x40;
    pub(in crate::ext4) const METADATA_CSUM: u32 = 0x400;
}

const INCOMPAT: u32 = incompat::FILETYPE
    | incompat::RECOVER
    | incompat::EXTENTS
    | incompat::WIDE
    | incompat::FLEX_BG
    | incompat::CSUM_SEED;
const READ_ONLY: u32 = read_only::SPARSE_SUPER
    | read_only::LARGE_FILE
    | read_only::HUGE_FILE
    | read_only::GDT_CSUM
    | read_only::DIR_NLINK
    | read_only::EXTRA_ISIZE
    | read_only::METADATA_CSUM;

/// Names as mke2fs(8) has them.
const INCOMPAT_NAMES: [(u32, &str); 10] = [
    (0x1, "compression"),
    (0x8, "journal_dev"),
    (0x10, "meta_bg"),
    (0x100, "mmp"),
    (0x400, "ea_inode"),
    (0x1000, "dirdata"),
    (0x4000, "large_dir"),
    (0x8000, "inline_data"),
    (0x1_0000, "encrypt"),
    (0x2_0000, "casefold"),
];
const READ_ONLY_NAMES: [(u32, &str); 10] = [
    (0x4, "btree_dir"),
    (0x80, "snapshot"),
    (0x100, "quota"),
    (0x200, "bigalloc"),
    (0x800, "replica"),
    (0x1000, "read-only"),
    (0x2000, "project"),
    (0x4000, "shared_blocks"),
    (0x8000, "verity"),
    (0x1_0000, "orphans in a file: mount it by Linux once"),
];

/// Checks that a file system with these features can be written.
///
/// # Errors
/// [`Error::Unsupported`] with the names of those that are not supported, or missing.
pub(super) fn check(compat: u32, incompat: u32, read_only: u32) -> Result<()> {
    let mut found = names(incompat & !INCOMPAT, &INCOMPAT_NAMES, "incompat");
    found.extend(names(read_only & !READ_ONLY, &READ_ONLY_NAMES, "ro_compat"));
    if compat & compat::SPARSE_SUPER2 != 0 {
        found.push("sparse_super2".into());
    }
    for (is_there, name) in [
        (compat & compat::HAS_JOURNAL != 0, "no has_journal"),
        (incompat & incompat::FILETYPE != 0, "no filetype"),
        (incompat & incompat::EXTENTS != 0, "no extent"),
    ] {
        if !is_there {
            found.push(name.into());
        }
    }
    match found.is_empty() {
        true => Ok(()),
        false => Err(Error::Unsupported(found.join(", "))),
    }
}

fn names(bits: u32, known: &[(u32, &str)], set: &str) -> Vec<String> {
    let each = (0..32).map(|bit| 1 << bit).filter(|bit| bits & bit != 0);
    let name = |bit: u32| match known.iter().find(|(of, _)| *of == bit) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("{set} {bit:#x}"),
    };
    each.map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::{Error, INCOMPAT, READ_ONLY, check, compat};

    #[test]
    fn unsupported_ones_are_named() {
        assert_eq!(check(compat::HAS_JOURNAL, INCOMPAT, READ_ONLY), Ok(()));
        let unknown = check(
            0x1234 & !compat::SPARSE_SUPER2 | compat::HAS_JOURNAL,
            INCOMPAT,
            0,
        );
        assert_eq!(unknown, Ok(()), "compatible ones can be ignored");
        let refused = |incompat, read_only| match check(compat::HAS_JOURNAL, incompat, read_only) {
            Err(Error::Unsupported(names)) => names,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(INCOMPAT | 0x8010, 0), "meta_bg, inline_data");
        assert_eq!(refused(INCOMPAT, 0x200), "bigalloc");
        assert_eq!(refused(INCOMPAT | 1 << 31, 0), "incompat 0x80000000");
        assert_eq!(refused(0, 0), "no filetype, no extent");
    }
}
