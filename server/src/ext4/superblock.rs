//! The superblock (Documentation/filesystems/ext4/super.rst of Linux).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::crc32c;
use super::error::{Error, Result};
use super::feature::{self, incompat, read_only};

/// Where it is on the device, in bytes.
pub(super) const OFFSET: u64 = 1024;
/// Its size.
pub(super) const SIZE: usize = 1024;
const MAGIC: u16 = 0xef53;
/// The state: errors were found.
const HAS_ERRORS: u16 = 2;
const CRC32C: u8 = 1;

/// As it is on disk.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Raw {
    inodes: U32,
    blocks_low: U32,
    reserved_low: U32,
    free_blocks_low: U32,
    free_inodes: U32,
    first_data_block: U32,
    log_block_size: U32,
    log_cluster_size: U32,
    blocks_per_group: U32,
    clusters_per_group: U32,
    inodes_per_group: U32,
    mounted: U32,
    written: U32,
    mount_count: U16,
    mount_count_max: U16,
    magic: U16,
    state: U16,
    errors: U16,
    minor_revision: U16,
    checked: U32,
    check_interval: U32,
    creator: U32,
    revision: U32,
    reserved_user: U16,
    reserved_group: U16,
    first_inode: U32,
    inode_size: U16,
    group: U16,
    compat: U32,
    incompat: U32,
    read_only: U32,
    uuid: [u8; 16],
    label: [u8; 16],
    last_mounted: [u8; 64],
    algorithms: U32,
    preallocated: U16,
    reserved_descriptor_blocks: U16,
    journal_uuid: [u8; 16],
    journal_inode: U32,
    journal_device: U32,
    last_orphan: U32,
    hash_seed: [U32; 4],
    hash_version: u8,
    journal_backup: u8,
    descriptor_size: U16,
    mount_options: U32,
    first_meta_group: U32,
    made: U32,
    journal_blocks: [U32; 17],
    blocks_high: U32,
    reserved_high: U32,
    free_blocks_high: U32,
    extra_size_min: U16,
    extra_size: U16,
    flags: U32,
    stripes: [U32; 4],
    log_flex: u8,
    checksum_type: u8,
    padding: U16,
    written_kib: U64,
    more: [u8; 0xf0],
    checksum_seed: U32,
    rest: [u8; 0x188],
    checksum: U32,
}

const _: () = assert!(size_of::<Raw>() == SIZE);

/// The superblock, whose sizes are checked: nothing computed from them overflows, and all groups are on
/// the device.
#[derive(Clone, Debug)]
pub(super) struct Superblock {
    raw: Raw,
    /// Whether it differs from what is in the cache.
    pub(super) is_dirty: bool,
}

impl Superblock {
    /// Reads it from its bytes.
    ///
    /// # Errors
    /// [`Error::NoExt4`], [`Error::Unsupported`], [`Error::Damaged`].
    pub(super) fn parse(bytes: &[u8], device_bytes: u64) -> Result<Self> {
        let raw = Raw::read_from_bytes(bytes).map_err(|_| Error::NoExt4)?;
        if raw.magic.get() != MAGIC {
            return Err(Error::NoExt4);
        }
        if raw.revision.get() == 0 {
            return Err(Error::Unsupported("revision 0".into()));
        }
        feature::check(raw.compat.get(), raw.incompat.get(), raw.read_only.get())?;
        let superblock = Self {
            raw,
            is_dirty: false,
        };
        superblock.check_sizes()?;
        superblock.check_counts(device_bytes)?;
        if superblock.has_checksums() && superblock.checksum() != superblock.raw.checksum.get() {
            return Err(Error::Damaged("checksum of the superblock"));
        }
        match superblock.raw.state.get() & HAS_ERRORS {
            0 => Ok(superblock),
            _ => Err(Error::Damaged("Linux has found errors")),
        }
    }

    fn check_sizes(&self) -> Result<()> {
        let raw = &self.raw;
        if raw.log_block_size.get() > 2 {
            return Err(Error::Unsupported("blocks of more than 4096 bytes".into()));
        }
        let block = self.block_size() as u32;
        let (inode, descriptor) = (u32::from(raw.inode_size.get()), self.descriptor_size());
        if inode < 256 {
            return Err(Error::Unsupported("inodes of fewer than 256 bytes".into()));
        }
        if self.has(incompat::WIDE) && descriptor != 64 {
            return Err(Error::Unsupported(
                "group descriptors of other sizes".into(),
            ));
        }
        let per_group = [raw.blocks_per_group.get(), raw.inodes_per_group.get()];
        let is_good = raw.log_cluster_size == raw.log_block_size
            && raw.first_data_block.get() == u32::from(block == 1024)
            && inode.is_power_of_two()
            && inode <= block
            && per_group
                .iter()
                .all(|of| *of > 0 && *of <= 8 * block && of % 8 == 0)
            && raw.inodes_per_group.get().is_multiple_of(block / inode)
            && (!self.has_checksums() || raw.checksum_type == CRC32C)
            && u32::from(raw.extra_size.get()) + 128 <= inode
            && (11..=raw.inodes.get()).contains(&raw.first_inode.get());
        match is_good {
            true => Ok(()),
            false => Err(Error::Damaged("sizes in the superblock")),
        }
    }

    fn check_counts(&self, device_bytes: u64) -> Result<()> {
        let groups = self.groups_of_blocks();
        let is_good = self.blocks() > self.first_block()
            && self.blocks() <= device_bytes / self.block_size() as u64
            && groups.checked_mul(self.inodes_per_group()) == Some(self.inodes())
            && self.descriptor_blocks() + 1 < self.blocks() - self.first_block();
        match is_good {
            true => Ok(()),
            false => Err(Error::Damaged("counts in the superblock")),
        }
    }

    /// Number of groups, of which there cannot be more than inodes.
    fn groups_of_blocks(&self) -> u32 {
        let blocks = self.blocks().saturating_sub(self.first_block());
        let groups = blocks.div_ceil(self.raw.blocks_per_group.get().into());
        u32::try_from(groups).unwrap_or(u32::MAX)
    }

    fn checksum(&self) -> u32 {
        crc32c(!0, &self.raw.as_bytes()[..SIZE - 4])
    }

    /// Returns its bytes, with the checksum and the time.
    pub(super) fn bytes(&mut self, now_seconds: i64) -> &[u8] {
        self.raw.written = (now_seconds as u32).into();
        if self.has_checksums() {
            self.raw.checksum = self.checksum().into();
        }
        self.raw.as_bytes()
    }

    fn has(&self, incompat: u32) -> bool {
        self.raw.incompat.get() & incompat != 0
    }

    fn has_read_only(&self, feature: u32) -> bool {
        self.raw.read_only.get() & feature != 0
    }

    /// Whether metadata have checksums (`metadata_csum`).
    pub(super) fn has_checksums(&self) -> bool {
        self.has_read_only(read_only::METADATA_CSUM)
    }

    /// Whether group descriptors alone have them (`uninit_bg`).
    pub(super) fn has_group_checksums(&self) -> bool {
        self.has_read_only(read_only::GDT_CSUM)
    }

    /// Whether blocks have 48-bit numbers.
    pub(super) fn is_wide(&self) -> bool {
        self.has(incompat::WIDE)
    }

    /// Whether directories can have more subdirectories than links.
    pub(super) fn has_many_directories(&self) -> bool {
        self.has_read_only(read_only::DIR_NLINK)
    }

    /// What checksums begin with.
    pub(super) fn seed(&self) -> u32 {
        match self.has(incompat::CSUM_SEED) {
            true => self.raw.checksum_seed.get(),
            false => crc32c(!0, &self.raw.uuid),
        }
    }

    pub(super) fn uuid(&self) -> &[u8] {
        &self.raw.uuid
    }

    pub(super) fn block_size(&self) -> usize {
        1024 << self.raw.log_block_size.get().min(2)
    }

    /// Block number 0 is in none of the groups if this is 1.
    pub(super) fn first_block(&self) -> u64 {
        self.raw.first_data_block.get().into()
    }

    pub(super) fn blocks(&self) -> u64 {
        let high = if self.is_wide() {
            self.raw.blocks_high.get()
        } else {
            0
        };
        u64::from(self.raw.blocks_low.get()) | u64::from(high) << 32
    }

    pub(super) fn blocks_per_group(&self) -> u32 {
        self.raw.blocks_per_group.get()
    }

    pub(super) fn inodes(&self) -> u32 {
        self.raw.inodes.get()
    }

    pub(super) fn inodes_per_group(&self) -> u32 {
        self.raw.inodes_per_group.get()
    }

    pub(super) fn inode_size(&self) -> usize {
        self.raw.inode_size.get().into()
    }

    /// Bytes of a new inode beyond 128.
    pub(super) fn extra_size(&self) -> u16 {
        self.raw.extra_size.get().max(32)
    }

    /// The first inode that is not reserved.
    pub(super) fn first_inode(&self) -> u32 {
        self.raw.first_inode.get()
    }

    pub(super) fn groups(&self) -> u32 {
        self.groups_of_blocks()
    }

    pub(super) fn descriptor_size(&self) -> usize {
        match self.is_wide() {
            true => self.raw.descriptor_size.get().into(),
            false => 32,
        }
    }

    /// Blocks of group descriptors.
    pub(super) fn descriptor_blocks(&self) -> u64 {
        let bytes = u64::from(self.groups()) * self.descriptor_size() as u64;
        bytes.div_ceil(self.block_size() as u64)
    }

    /// Blocks at the begin of a group for the superblock and group descriptors.
    pub(super) fn blocks_at_start(&self, group: u32) -> u64 {
        let is_power = |of: u32| {
            std::iter::successors(Some(of), |power| power.checked_mul(of))
                .any(|power| power == group)
        };
        let has_backup = !self.has_read_only(read_only::SPARSE_SUPER)
            || group <= 1
            || [3, 5, 7].into_iter().any(is_power);
        match has_backup {
            true => {
                1 + self.descriptor_blocks() + u64::from(self.raw.reserved_descriptor_blocks.get())
            }
            false => 0,
        }
    }

    pub(super) fn journal_inode(&self) -> u32 {
        self.raw.journal_inode.get()
    }

    pub(super) fn free_blocks(&self) -> u64 {
        let high = if self.is_wide() {
            self.raw.free_blocks_high.get()
        } else {
            0
        };
        u64::from(self.raw.free_blocks_low.get()) | u64::from(high) << 32
    }

    pub(super) fn set_free_blocks(&mut self, count: u64) {
        self.is_dirty = true;
        self.raw.free_blocks_low = (count as u32).into();
        if self.is_wide() {
            self.raw.free_blocks_high = ((count >> 32) as u32).into();
        }
    }

    pub(super) fn free_inodes(&self) -> u32 {
        self.raw.free_inodes.get()
    }

    pub(super) fn set_free_inodes(&mut self, count: u32) {
        self.is_dirty = true;
        self.raw.free_inodes = count.into();
    }

    /// The last inode that was unlinked, or is to be cut, while it was open.
    pub(super) fn last_orphan(&self) -> u32 {
        self.raw.last_orphan.get()
    }

    pub(super) fn set_last_orphan(&mut self, inode: u32) {
        self.is_dirty = true;
        self.raw.last_orphan = inode.into();
    }

    /// Says whether the journal is in use.
    pub(super) fn set_needs_recovery(&mut self, needs: bool) {
        self.is_dirty = true;
        let without = self.raw.incompat.get() & !incompat::RECOVER;
        self.raw.incompat = (without | if needs { incompat::RECOVER } else { 0 }).into();
    }

    /// Notes a mount.
    pub(super) fn set_mounted(&mut self, now_seconds: i64) {
        self.is_dirty = true;
        self.raw.mounted = (now_seconds as u32).into();
        self.raw.mount_count = self.raw.mount_count.get().wrapping_add(1).into();
    }
}
