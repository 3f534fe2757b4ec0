//! The proxy that is set up in another process: what its memory and its registers have to be, so that
//! the process goes on as a program.

use std::ops::Range;

use insula_abi::lwk::{MIRROR_MAP_KEEP, MIRROR_SLOTS, MirrorMap, MirrorStart};
use insula_proxy::{BLOB_SIZE, STACK_SIZE, blob};
use nix::libc;

use super::data::{Data, Source};
use super::region::{ADDRESS_END, ADDRESS_MIN, RegionLayout, SLOTS_SIZE};
use super::signals::{self, Inherited};

/// The proxy of a process that runs already, with its region in the middle of the program's addresses.
#[derive(Clone, Copy, Debug)]
pub struct OtherProxy {
    /// Where its parts are.
    pub region: RegionLayout,
    /// Number of the mirror's descriptor in the process.
    pub descriptor: u64,
}

impl OtherProxy {
    /// The program's part of the address space: all of it, the proxy's region included.
    #[must_use]
    pub fn program() -> Range<u64> {
        ADDRESS_MIN..ADDRESS_END
    }

    /// The bytes of the blob, to be executed, and of the data behind it, to be read and written.
    #[must_use]
    pub fn contents(&self, polls: u64, arguments: &[u8]) -> [Vec<u8>; 2] {
        let nothing = Inherited {
            ignored: 0,
            blocked: 0,
        };
        let source = Source {
            region: &self.region,
            program: Self::program(),
            fd: self.descriptor,
            polls,
            arguments,
            signals: nothing,
        };
        let data = Data::without_steps(&source).bytes(&self.region);
        [blob().bytes.to_vec(), data]
    }

    /// Addresses of the blob.
    #[must_use]
    pub fn code(&self) -> Range<u64> {
        let start = self.region.address();
        start..start + BLOB_SIZE as u64
    }

    /// Addresses of the data, in whole pages.
    #[must_use]
    pub fn data(&self) -> Range<u64> {
        let start = self.region.data();
        start..start + self.region.data_size() as u64
    }

    /// Addresses at which the syscall slots are mapped, and their offset in the mirror.
    #[must_use]
    pub fn slots(&self) -> (Range<u64>, u64) {
        let start = self.region.slots();
        (start..start + SLOTS_SIZE, MIRROR_SLOTS)
    }

    /// Addresses of the stack for a slot. A thread enters the blob at its first byte, with its slot in
    /// RDI and the end of this stack in RSP.
    #[must_use]
    pub fn stack(&self, slot: u32) -> Range<u64> {
        let start = self.region.stack(slot);
        start..start + STACK_SIZE as u64
    }

    /// The argument of `INSULA_MIRROR_MAP` that maps the mirror where the process has nothing.
    #[must_use]
    pub fn holes(&self) -> MirrorMap {
        let Range { start, end } = Self::program();
        let flags = MIRROR_MAP_KEEP;
        MirrorMap { start, end, flags }
    }

    /// The argument of `INSULA_MIRROR_START`, with the size of the state, and the address at which it
    /// may be copied.
    #[must_use]
    pub fn start(&self, state_size: u64, running: u64) -> MirrorStart {
        MirrorStart {
            arguments_size: state_size,
            descriptor: self.descriptor,
            slots: self.region.slots(),
            ignored: 0,
            blocked: 0,
            running,
        }
    }

    /// The action of the proxy for a signal, in the words of the kernel's `struct sigaction`; `None` if
    /// it is left as it is. `of_program` is the program's, in the same words.
    #[must_use]
    pub fn action(&self, signal: i32, of_program: [u64; 4]) -> Option<[u64; 4]> {
        const CHILD_FLAGS: u64 = (libc::SA_NOCLDSTOP | libc::SA_NOCLDWAIT) as u64;
        let is_ignored = of_program[0] == libc::SIG_IGN as u64;
        let ignored = if is_ignored { 1 << (signal - 1) } else { 0 };
        let action = signals::action(&self.region, signal, ignored)?;
        // Children are the proxy's.
        let children = match signal {
            libc::SIGCHLD => of_program[1] & CHILD_FLAGS,
            _ => 0,
        };
        let flags = action.flags | children;
        Some([action.handler, flags, action.restorer, action.mask])
    }
}
