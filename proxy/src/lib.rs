//! The loop of a proxy: what executes, on the base, the system calls of a program on a lightweight
//! kernel (`abi/include/insula_lwk.h` tells the protocol).
//!
//! It has to work in an address space in which there is nothing else: no libc, no stack but its own,
//! not even the program that brought it there. So it is a *blob*: code that can be copied anywhere,
//! into any process, and needs nothing from where it is but the page behind it. It is written in
//! assembly since all that it does is to load registers and to make system calls, and since one of
//! them must be breakable off at every instruction.
//!
//! ```text
//!  region   | blob, read and executed       | BLOB_SIZE
//!           | parameters, read and written  | PARAMETERS_SIZE, see Parameters
//!           | desks of the process          | a mapping of the space
//!           | stacks, one for each desk     | STACK_SIZE each, touched when used
//! ```
//!
//! It begins at its first byte, with the number of its desk in RDI. First it makes the system calls
//! that [`Parameters::steps`] lists: by these the old address space goes and the program's is
//! mapped, and whoever prepares them decides all that is policy. Then it sits at its desk for good.
//!
//! Registers, from then on: R12 is the desk's address, R13 that of the thread's own word, R14 the
//! turn that is being served, R15 the parameters, RBX the desk's number.
//!
//! **Breaking off.** The module sends signal [`SPACE_INTERRUPT`] to the thread. If that is within the
//! system call, the call ends as for any signal. If it comes before, the handler writes the turn
//! to the thread's own word, at which the thread looks before the call; and if it is between
//! that look and the call, the handler sends the thread past the call. So a call that is to be broken
//! off before it began never begins.
//!
//! **Copies.** When the program forks, so does the proxy: the child has the region but for the desks,
//! makes the calls that [`Parameters::copy_steps`] lists, and sits at a desk of its own.
//!
//! **Signals** are passed on to the program by [`ioctl::SPACE_SIGNAL`]. Those of the processor that
//! tell of a fault of the blob itself end it; a desk that is there no more is the node's end.
//!
//! [`SPACE_INTERRUPT`]: insula_abi::lwk::SPACE_INTERRUPT
//! [`ioctl::SPACE_SIGNAL`]: insula_abi::ioctl::SPACE_SIGNAL

#![no_std]
#![allow(unsafe_code, reason = "the blob is assembly")]

use core::arch::global_asm;
use core::mem::offset_of;

use insula_abi::ioctl;
use insula_abi::lwk::{ANSWER_RESULT, Desk, SPACE_INTERRUPT, SpaceFork, request};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes reserved for the blob; the parameters lie behind them.
pub const BLOB_SIZE: usize = 4096;
/// Bytes of a thread's stack: it holds the frames of signals, of which two can be nested.
pub const STACK_SIZE: usize = 1 << STACK_SHIFT;
const STACK_SHIFT: u32 = 15;
/// Exit status of a proxy that cannot go on.
pub const FAILED: i32 = 125;

/// A system call to be made before the program begins.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
pub struct Step {
    /// Its number.
    pub number: u64,
    /// Its arguments.
    pub arguments: [u64; 6],
    /// What is written to standard error if it fails, which ends the process; with size 0 it
    /// may fail.
    pub complaint: Text,
}

/// Bytes in the region.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
pub struct Text {
    /// Address of the first.
    pub start: u64,
    /// How many.
    pub size: u64,
}

/// What the blob has to know. Addresses are those of the process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
pub struct Parameters {
    /// Descriptor of the space.
    pub space: u64,
    /// Where desk 0 would lie, in the mapping of the desks.
    pub desks: u64,
    /// End of that mapping.
    pub desks_end: u64,
    /// Lowest address of the stack for desk 0.
    pub stacks: u64,
    /// How often a turn is looked for before sleeping.
    pub polls: u64,
    /// The array of [`Step`].
    pub steps: u64,
    /// Address behind its last.
    pub steps_end: u64,
    /// The array of [`Step`] that the proxy of a copy begins with: its space is that of
    /// [`Parameters::space`], of which nothing is mapped yet.
    pub copy_steps: u64,
    /// Address behind its last.
    pub copy_steps_end: u64,
    /// What [`request::ARGUMENTS`] gives.
    pub arguments: Text,
    /// What is written to standard error when the node has ended.
    pub node_gone: Text,
    /// All ones: a set of all signals.
    pub all_signals: u64,
    /// A `struct sigaction` of the kernel's that is all zero: the default.
    pub default_action: [u64; 4],
    /// A `struct rlimit` of 0: no core file of the proxy itself.
    pub no_core: [u64; 2],
}

/// Where in the blob things begin, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blob {
    /// The bytes to be copied.
    pub bytes: &'static [u8],
    /// The handler of all signals.
    pub handler: usize,
    /// To where a handler returns, `sa_restorer`.
    pub restorer: usize,
}

/// The blob.
#[must_use]
pub fn blob() -> Blob {
    unsafe extern "C" {
        static insula_proxy_begin: u8;
        static insula_proxy_handler: u8;
        static insula_proxy_restorer: u8;
        static insula_proxy_end: u8;
    }
    let (begin, handler) = (
        &raw const insula_proxy_begin,
        &raw const insula_proxy_handler,
    );
    let (restorer, end) = (
        &raw const insula_proxy_restorer,
        &raw const insula_proxy_end,
    );
    let offset = |at: *const u8| at.addr() - begin.addr();
    Blob {
        // SAFETY: the assembly below lays out these bytes, between the two labels and never changed.
        bytes: unsafe { core::slice::from_raw_parts(begin, offset(end)) },
        handler: offset(handler),
        restorer: offset(restorer),
    }
}

global_asm!(
    include_str!("blob.s"),
    BLOB_SIZE = const BLOB_SIZE,
    STACK_SHIFT = const STACK_SHIFT,
    FAILED = const FAILED,
    STEP = const size_of::<Step>(),
    STEP_NUMBER = const offset_of!(Step, number),
    STEP_ARGUMENTS = const offset_of!(Step, arguments),
    STEP_COMPLAINT = const offset_of!(Step, complaint),
    SPACE = const offset_of!(Parameters, space),
    DESKS = const offset_of!(Parameters, desks),
    DESKS_END = const offset_of!(Parameters, desks_end),
    STACKS = const offset_of!(Parameters, stacks),
    POLLS = const offset_of!(Parameters, polls),
    STEPS = const offset_of!(Parameters, steps),
    STEPS_END = const offset_of!(Parameters, steps_end),
    COPY_STEPS = const offset_of!(Parameters, copy_steps),
    COPY_STEPS_END = const offset_of!(Parameters, copy_steps_end),
    PROGRAM = const offset_of!(Parameters, arguments),
    NODE_GONE = const offset_of!(Parameters, node_gone),
    ALL_SIGNALS = const offset_of!(Parameters, all_signals),
    DEFAULT_ACTION = const offset_of!(Parameters, default_action),
    NO_CORE = const offset_of!(Parameters, no_core),
    DESK = const size_of::<Desk>(),
    TURN = const offset_of!(Desk, turn),
    NUMBER = const offset_of!(Desk, number),
    ARGUMENTS = const offset_of!(Desk, arguments),
    ANSWER_TURN = const offset_of!(Desk, answer_turn),
    KIND = const offset_of!(Desk, kind),
    RESULT = const offset_of!(Desk, result),
    VALUE = const offset_of!(Desk, value),
    LWK_ASLEEP = const offset_of!(Desk, lwk_asleep),
    KIND_RESULT = const ANSWER_RESULT,
    REQUEST_SHIFT = const request::REQUEST.trailing_zeros(),
    // The lower halves of the requests' numbers.
    REQUEST_ARGUMENTS = const request::ARGUMENTS as u32,
    REQUEST_THREAD = const request::THREAD as u32,
    REQUEST_THREAD_END = const request::THREAD_END as u32,
    REQUEST_EXIT = const request::EXIT as u32,
    REQUEST_RELEASE = const request::RELEASE as u32,
    REQUEST_FORK = const request::FORK as u32,
    REQUEST_RESOLVED = const request::RESOLVED as u32,
    FORK = const size_of::<SpaceFork>(),
    FORK_DESK = const offset_of!(SpaceFork, desk),
    FORK_PROCESS = const offset_of!(SpaceFork, process),
    INTERRUPT = const SPACE_INTERRUPT,
    SPACE_DESK = const ioctl::SPACE_DESK,
    SPACE_SIT = const ioctl::SPACE_SIT,
    SPACE_LEAVE = const ioctl::SPACE_LEAVE,
    SPACE_WAIT = const ioctl::SPACE_WAIT,
    SPACE_RING = const ioctl::SPACE_RING,
    SPACE_SIGNAL = const ioctl::SPACE_SIGNAL,
    SPACE_RELEASE = const ioctl::SPACE_RELEASE,
    SPACE_FORK = const ioctl::SPACE_FORK,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fits_and_begins_with_its_entry() {
        let blob = blob();
        assert!(blob.bytes.len() <= BLOB_SIZE, "{}", blob.bytes.len());
        assert!(0 < blob.handler && blob.handler < blob.bytes.len());
        assert!(0 < blob.restorer && blob.restorer < blob.bytes.len());
    }
}
