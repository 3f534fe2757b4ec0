//! Mirror of `include/insula_frames.h`, memory that a node uses for a while, and of the calls in
//! `include/insula.h` by which it is lent and borrowed.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `INSULA_FRAMES_WRITABLE`: the node may write the pages.
pub const FRAMES_WRITABLE: u32 = 1 << 0;
/// `INSULA_FRAMES_RUNS_MAX`: most page references in a [`FramesKind::GRANTED`].
pub const FRAMES_RUNS_MAX: usize = 63;
/// `INSULA_LEND_PATIENCE_MIN_MS`: shortest [`Lend::patience_ms`].
pub const LEND_PATIENCE_MIN_MS: u32 = 10;
/// `INSULA_LEND_PATIENCE_MAX_MS`: longest [`Lend::patience_ms`].
pub const LEND_PATIENCE_MAX_MS: u32 = 10000;

/// `enum insula_frames_kind`: the kind of a message.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FramesKind(pub u8);

impl FramesKind {
    /// To the node: these pages lie there, and may be used.
    pub const GRANTED: Self = Self(1);
    /// To the node: this range is not its any more.
    pub const TAKEN: Self = Self(2);
    /// To the base: the node has ceased to use it.
    pub const RETURNED: Self = Self(3);
}

/// `struct insula_frames`: what each of the messages says, behind its page references.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Frames {
    /// Where, in the lender's numbering: an address of its process.
    pub start: u64,
    /// Bytes; as `start` a multiple of 4096.
    pub size: u64,
    /// Which of those who lend to this node, never 0.
    pub lender: u32,
    /// Of a taking, counted from 1, and of its return; else 0.
    pub number: u32,
    /// Of a grant: [`FRAMES_WRITABLE`].
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

/// `struct insula_lend`: lend memory of the calling process.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Lend {
    /// Out: the lender's number, by which the node knows it.
    pub lender: u32,
    /// In: how long the node may take to give back, in milliseconds.
    pub patience_ms: u32,
}

/// `struct insula_frames_grant`: a range that the node is to use.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct FramesGrant {
    /// In the lender's process; a multiple of 4096.
    pub address: u64,
    /// Bytes; a multiple of 4096.
    pub size: u64,
    /// In: address of an array of `u64` for the pages' physical addresses, or 0.
    pub pages: u64,
    /// In: its length.
    pub capacity: u32,
    /// [`FRAMES_WRITABLE`].
    pub flags: u32,
}

/// `struct insula_frames_take`: a range that the node is not to use any more.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct FramesTake {
    /// In the lender's process; a multiple of 4096.
    pub address: u64,
    /// Bytes; a multiple of 4096.
    pub size: u64,
}

/// `struct insula_borrow`: the other end, in a node.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Borrow {
    /// The lender's number.
    pub lender: u32,
    /// Zero.
    pub reserved: u32,
}
