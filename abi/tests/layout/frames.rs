//! What `insula_frames.h` says, and what `insula.h` says of lending, by Rust.

use insula_abi::frames::{self, Borrow, Frames, FramesGrant, FramesKind, FramesTake, Lend};
use insula_abi::ioctl;

use super::{Facts, structure, values};

pub(crate) fn structures() -> Facts {
    let mut facts = Facts::new();
    structure!(
        facts,
        Frames,
        "insula_frames",
        [start, size, lender, number, flags, reserved]
    );
    structure!(facts, Lend, "insula_lend", [lender, patience_ms]);
    structure!(
        facts,
        FramesGrant,
        "insula_frames_grant",
        [address, size, pages, capacity, flags]
    );
    structure!(facts, FramesTake, "insula_frames_take", [address, size]);
    structure!(facts, Borrow, "insula_borrow", [lender, reserved]);
    facts
}

pub(crate) fn constants() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_FRAMES_WRITABLE = frames::FRAMES_WRITABLE,
        INSULA_FRAMES_RUNS_MAX = frames::FRAMES_RUNS_MAX,
        INSULA_LEND_PATIENCE_MIN_MS = frames::LEND_PATIENCE_MIN_MS,
        INSULA_LEND_PATIENCE_MAX_MS = frames::LEND_PATIENCE_MAX_MS,
        INSULA_NODE_LEND = ioctl::NODE_LEND,
        INSULA_FRAMES_GRANT = ioctl::FRAMES_GRANT,
        INSULA_FRAMES_TAKE = ioctl::FRAMES_TAKE,
        INSULA_BORROW = ioctl::BORROW,
    });
    facts
}

pub(crate) fn enumerators() -> Facts {
    let mut facts = Facts::new();
    values!(facts, {
        INSULA_FRAMES_GRANTED = FramesKind::GRANTED.0,
        INSULA_FRAMES_TAKEN = FramesKind::TAKEN.0,
        INSULA_FRAMES_RETURNED = FramesKind::RETURNED.0,
    });
    facts
}
