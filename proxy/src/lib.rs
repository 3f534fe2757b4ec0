//! Main loop of a proxy: executes, on the base, the system calls of a program on a lightweight
//! kernel (`abi/include/insula_lwk.h` defines the protocol).
//!
//! It runs in an otherwise empty address space: no libc, no stack but its own, not even the program
//! that loaded it. So it is a *blob*: position-independent code that can be copied into any
//! process, and needs nothing around it but the page behind it. It is written in assembly because
//! it only loads registers and makes system calls, and because one of them must be cancellable at
//! every instruction.
//!
//! ```text
//!  region   | blob, read and executed       | BLOB_SIZE
//!           | parameters, read and written  | PARAMETERS_SIZE, see Parameters
//!           | syscall slots of the process  | a mapping of the mirror, MIRROR_SLOTS_SIZE
//!           | the same for threads' exits   | of the same size: see **Exit**
//!           | stacks, one for each slot     | STACK_SIZE each, accessible when used
//! ```
//!
//! The entry is its first byte, with the number of the slot in RDI. First it makes the system calls
//! in [`Parameters::steps`]: these unmap the old address space and map the program's. The process
//! that prepares them sets all policy. Then the thread serves its slot until it exits.
//!
//! Registers from then on: R12 is the slot's address, R13 the address of the thread's cancel word,
//! R14 the sequence number being served, R15 the parameters, RBX the slot's number.
//!
//! **Cancelling a call.** The module sends signal [`MIRROR_CANCEL_SIGNAL`] to the thread. Within
//! the system call, the signal interrupts it as any signal does. Before it, the handler stores the
//! sequence number to the cancel word, which the thread checks before the call; between that check
//! and the call, the handler moves RIP past the call. So a call that is cancelled before it begins
//! is never made, and its second result is [`NOT_BEGUN`].
//!
//! **Fork.** When the program forks, so does the proxy: the child inherits the region except for
//! the slots, makes the calls in [`Parameters::child_steps`], and attaches to a slot of its own.
//!
//! **Exit.** Each thread has its list of robust futexes in its slot, as found in the second mapping,
//! which Linux reads only when the thread exits.
//!
//! **Signals** are forwarded to the program by [`ioctl::MIRROR_SIGNAL`]. A fault of the blob itself
//! terminates the proxy; a fault on a slot means that the node has ended.
//!
//! [`MIRROR_CANCEL_SIGNAL`]: insula_abi::lwk::MIRROR_CANCEL_SIGNAL
//! [`NOT_BEGUN`]: insula_abi::lwk::NOT_BEGUN
//! [`ioctl::MIRROR_SIGNAL`]: insula_abi::ioctl::MIRROR_SIGNAL

#![no_std]
#![allow(unsafe_code, reason = "the blob is assembly")]

use core::arch::global_asm;
use core::mem::offset_of;

use insula_abi::ioctl;
use insula_abi::lwk::{
    ANSWER_RESULT, MIRROR_CANCEL_SIGNAL, MIRROR_SLOTS_SIZE, MirrorFork, NOT_BEGUN, SyscallSlot,
    request,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes reserved for the blob; the parameters follow it.
pub const BLOB_SIZE: usize = 4096;
/// Bytes of a thread's stack: it holds up to two nested signal frames.
pub const STACK_SIZE: usize = 1 << STACK_SHIFT;
const STACK_SHIFT: u32 = 15;
/// Exit status of a proxy that failed.
pub const EXIT_FAILED: i32 = 125;

/// System call made before the program starts.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
pub struct Step {
    /// Its number.
    pub number: u64,
    /// Its arguments.
    pub arguments: [u64; 6],
    /// Message written to standard error on failure, after which the process exits. With size 0
    /// failure is ignored.
    pub error_message: Text,
}

/// Byte range in the region.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
pub struct Text {
    /// Address of the first byte.
    pub start: u64,
    /// Number of bytes.
    pub size: u64,
}

/// Parameters of the blob. Addresses are those of the process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
pub struct Parameters {
    /// Descriptor of the mm mirror.
    pub mirror: u64,
    /// Address at which slot 0 would be in the mapping of the slots.
    pub slots: u64,
    /// End of that mapping.
    pub slots_end: u64,
    /// Lowest address of the stack for slot 0.
    pub stacks: u64,
    /// How often a thread polls for the next sequence number before it sleeps.
    pub spins: u64,
    /// Address of the array of [`Step`].
    pub steps: u64,
    /// End of that array.
    pub steps_end: u64,
    /// Address of the array of [`Step`] for a forked child. The child has the descriptor
    /// [`Parameters::mirror`], but nothing of its own mirror is mapped yet.
    pub child_steps: u64,
    /// End of that array.
    pub child_steps_end: u64,
    /// Bytes that [`request::ARGUMENTS`] copies to the program.
    pub arguments: Text,
    /// Message written to standard error when the node has ended.
    pub node_gone: Text,
    /// Signal set of all signals.
    pub all_signals: u64,
    /// The kernel's `struct sigaction` of the default action: all zero.
    pub default_action: [u64; 4],
    /// `struct rlimit` of 0: the proxy itself dumps no core.
    pub no_core_limit: [u64; 2],
}

/// The blob and offsets in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blob {
    /// Bytes to copy.
    pub bytes: &'static [u8],
    /// Offset of the handler of all signals.
    pub handler: usize,
    /// Offset of `sa_restorer`.
    pub restorer: usize,
}

/// Returns the blob.
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
        // SAFETY: the assembly below emits these bytes between the two labels; they are constant.
        bytes: unsafe { core::slice::from_raw_parts(begin, offset(end)) },
        handler: offset(handler),
        restorer: offset(restorer),
    }
}

global_asm!(
    include_str!("blob.s"),
    BLOB_SIZE = const BLOB_SIZE,
    STACK_SHIFT = const STACK_SHIFT,
    STACK_SIZE = const STACK_SIZE,
    EXIT_FAILED = const EXIT_FAILED,
    STEP = const size_of::<Step>(),
    STEP_NUMBER = const offset_of!(Step, number),
    STEP_ARGUMENTS = const offset_of!(Step, arguments),
    STEP_ERROR_MESSAGE = const offset_of!(Step, error_message),
    MIRROR = const offset_of!(Parameters, mirror),
    SLOTS = const offset_of!(Parameters, slots),
    SLOTS_END = const offset_of!(Parameters, slots_end),
    STACKS = const offset_of!(Parameters, stacks),
    SPINS = const offset_of!(Parameters, spins),
    STEPS = const offset_of!(Parameters, steps),
    STEPS_END = const offset_of!(Parameters, steps_end),
    CHILD_STEPS = const offset_of!(Parameters, child_steps),
    CHILD_STEPS_END = const offset_of!(Parameters, child_steps_end),
    PROGRAM_ARGUMENTS = const offset_of!(Parameters, arguments),
    NODE_GONE = const offset_of!(Parameters, node_gone),
    ALL_SIGNALS = const offset_of!(Parameters, all_signals),
    DEFAULT_ACTION = const offset_of!(Parameters, default_action),
    NO_CORE_LIMIT = const offset_of!(Parameters, no_core_limit),
    SLOT = const size_of::<SyscallSlot>(),
    SEQUENCE = const offset_of!(SyscallSlot, sequence),
    NUMBER = const offset_of!(SyscallSlot, number),
    ARGUMENTS = const offset_of!(SyscallSlot, arguments),
    ANSWER_SEQUENCE = const offset_of!(SyscallSlot, answer_sequence),
    KIND = const offset_of!(SyscallSlot, kind),
    RESULT = const offset_of!(SyscallSlot, result),
    VALUE = const offset_of!(SyscallSlot, value),
    LWK_ASLEEP = const offset_of!(SyscallSlot, lwk_asleep),
    ROBUST_LIST = const MIRROR_SLOTS_SIZE as usize + offset_of!(SyscallSlot, robust_list),
    ROBUST_LIST_SIZE = const size_of::<[u64; 3]>(),
    KIND_RESULT = const ANSWER_RESULT,
    REQUEST_SHIFT = const request::REQUEST.trailing_zeros(),
    // Lower halves of the request numbers.
    REQUEST_ARGUMENTS = const request::ARGUMENTS as u32,
    REQUEST_THREAD = const request::THREAD as u32,
    REQUEST_THREAD_END = const request::THREAD_END as u32,
    REQUEST_EXIT = const request::EXIT as u32,
    REQUEST_INVALIDATE = const request::INVALIDATE as u32,
    REQUEST_FAULT_IN = const request::FAULT_IN as u32,
    REQUEST_FORK = const request::FORK as u32,
    REQUEST_RESOLVED = const request::RESOLVED as u32,
    FORK = const size_of::<MirrorFork>(),
    FORK_SLOT = const offset_of!(MirrorFork, slot),
    FORK_PROCESS = const offset_of!(MirrorFork, process),
    CANCEL_SIGNAL = const MIRROR_CANCEL_SIGNAL,
    NOT_BEGUN = const NOT_BEGUN,
    MIRROR_SLOT_ALLOC = const ioctl::MIRROR_SLOT_ALLOC,
    MIRROR_SLOT_ATTACH = const ioctl::MIRROR_SLOT_ATTACH,
    MIRROR_SLOT_FREE = const ioctl::MIRROR_SLOT_FREE,
    MIRROR_SLOT_WAIT = const ioctl::MIRROR_SLOT_WAIT,
    MIRROR_SLOT_WAKE = const ioctl::MIRROR_SLOT_WAKE,
    MIRROR_SIGNAL = const ioctl::MIRROR_SIGNAL,
    MIRROR_INVALIDATE = const ioctl::MIRROR_INVALIDATE,
    MIRROR_FAULT_IN = const ioctl::MIRROR_FAULT_IN,
    MIRROR_FORK = const ioctl::MIRROR_FORK,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fits_into_its_page() {
        let blob = blob();
        assert!(blob.bytes.len() <= BLOB_SIZE, "{}", blob.bytes.len());
        assert!(0 < blob.handler && blob.handler < blob.bytes.len());
        assert!(0 < blob.restorer && blob.restorer < blob.bytes.len());
    }
}
