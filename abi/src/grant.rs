//! Mirror of `include/insula_grant.h`, memory of processes granted to a node, and of the calls in
//! `include/insula_node.h` that grant and import it.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `INSULA_GRANT_WRITABLE`: the node may write the pages.
pub const GRANT_WRITABLE: u32 = 1 << 0;
/// `INSULA_GRANT_RUNS_MAX`: most page references in a [`GrantKind::GRANTED`].
pub const GRANT_RUNS_MAX: usize = 63;
/// `INSULA_GRANT_TIMEOUT_MIN_MS`: shortest [`GrantTable::timeout_ms`].
pub const GRANT_TIMEOUT_MIN_MS: u32 = 10;
/// `INSULA_GRANT_TIMEOUT_MAX_MS`: longest [`GrantTable::timeout_ms`].
pub const GRANT_TIMEOUT_MAX_MS: u32 = 10000;

/// `enum insula_grant_kind`: the kind of a message.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GrantKind(pub u8);

impl GrantKind {
    /// To the node: it may use these pages.
    pub const GRANTED: Self = Self(1);
    /// To the node: it must stop using this range.
    pub const REVOKING: Self = Self(2);
    /// To the base: the node has stopped using it.
    pub const REVOKED: Self = Self(3);
}

/// `struct insula_grant_message`: body of each message, after its page references.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct GrantMessage {
    /// Address in the granting process.
    pub start: u64,
    /// Bytes; like `start` a multiple of 4096.
    pub size: u64,
    /// Id of the grant table, never 0.
    pub table: u32,
    /// Of a [`GrantKind::REVOKING`], from 1, and of its [`GrantKind::REVOKED`]; else 0.
    pub sequence: u32,
    /// Of a [`GrantKind::GRANTED`]: [`GRANT_WRITABLE`].
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

/// `struct insula_grant_table`: a grant table to be created for the calling process.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct GrantTable {
    /// Out: its id, by which the node imports it.
    pub id: u32,
    /// In: longest time for the node to release a revoked range, in milliseconds.
    pub timeout_ms: u32,
}

/// `struct insula_grant_add`: a range to grant.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct GrantAdd {
    /// In the granting process; a multiple of 4096.
    pub address: u64,
    /// Bytes; a multiple of 4096.
    pub size: u64,
    /// In: address of an array of `u64` for the pages' physical addresses, or 0.
    pub pages: u64,
    /// In: its length.
    pub capacity: u32,
    /// [`GRANT_WRITABLE`].
    pub flags: u32,
}

/// `struct insula_grant_revoke`: a range to revoke.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct GrantRevoke {
    /// In the granting process; a multiple of 4096.
    pub address: u64,
    /// Bytes; a multiple of 4096.
    pub size: u64,
}

/// `struct insula_grant_import`: a grant table to be imported, in a node.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct GrantImport {
    /// Id of the grant table.
    pub table: u32,
    /// Zero.
    pub reserved: u32,
}
