//! Sets of signals.
//!
//! Source: signal(7) of Linux, and its include/uapi/asm-generic/signal.h.

use crate::model::signals::number;

/// Number of signals, numbered from 1.
pub const SIGNALS: u32 = 64;
/// First real-time signal: these are queued as often as they are sent.
pub(super) const REALTIME_MIN: u32 = 32;

/// Set of signals: bit number - 1 for each.
pub type Set = u64;

/// Returns the set with one signal.
#[must_use]
pub const fn bit(signal: u32) -> Set {
    1 << (signal - 1)
}

/// Returns the set with these signals.
pub(super) const fn set(signals: &[u32]) -> Set {
    let (mut all, mut at) = (0, 0);
    while at < signals.len() {
        all |= bit(signals[at]);
        at += 1;
    }
    all
}

/// Signals that cannot be caught, blocked or ignored.
pub const UNBLOCKABLE: Set = set(&[number::KILL, number::STOP]);
/// Signals that a signalfd(2) of the base cannot read for a program: it needs them itself, or this
/// kernel raises them.
pub(crate) const NOT_OF_FDS: Set =
    UNBLOCKABLE | SYNCHRONOUS | bit(insula_abi::lwk::MIRROR_CANCEL_SIGNAL);
/// Signals raised by an instruction, which are handled before all others.
pub(super) const SYNCHRONOUS: Set = set(&[
    number::ILL,
    number::TRAP,
    number::BUS,
    number::FPE,
    number::SEGV,
    number::SYS,
]);
/// Signals that are ignored by default.
pub(super) const DEFAULT_IGNORED: Set =
    set(&[number::CHLD, number::CONT, number::URG, number::WINCH]);
/// Signals that stop a process.
pub const STOP_SIGNALS: Set = set(&[number::STOP, number::TSTP, number::TTIN, number::TTOU]);
/// Signals by which a terminal stops background processes. The base's terminal checks itself
/// whether they are blocked or ignored.
pub const TTY_STOP: Set = set(&[number::TTIN, number::TTOU]);
/// Signals that terminate with a core file by default.
pub(super) const DEFAULT_CORE_DUMP: Set =
    SYNCHRONOUS | set(&[number::QUIT, number::ABRT, number::XCPU, number::XFSZ]);
