//! The smallest guest of KVM, on a core of the base: it adds two numbers, puts the sum out, and halts.
//!
//! Source: the kernel's Documentation/virt/kvm/api.rst and arch/x86/include/uapi/asm/kvm.h.

#![allow(unsafe_code, reason = "KVM's interface is ioctl and mmap")]

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::base::Finding;
use crate::base::support::insula_command::assert_equal;

const CREATE_VM: u32 = 0xae01;
const GET_VCPU_MMAP_SIZE: u32 = 0xae04;
const CREATE_VCPU: u32 = 0xae41;
const SET_USER_MEMORY_REGION: u32 = 0x4020_ae46;
const RUN: u32 = 0xae80;
const SET_REGS: u32 = 0x4090_ae82;
const GET_SREGS: u32 = 0x8138_ae83;
const SET_SREGS: u32 = 0x4138_ae84;

/// `struct kvm_regs`: RAX, RBX; RIP, RFLAGS, in words.
const REGS_WORDS: usize = 18;
const RAX: usize = 0;
const RBX: usize = 1;
const RIP: usize = 16;
const RFLAGS: usize = 17;
/// `struct kvm_sregs` in words; it begins with CS: base, then limit and selector.
const SREGS_WORDS: usize = 39;
/// `struct kvm_run`: the reason of the exit; of KVM_EXIT_IO the offset of the data.
const EXIT_REASON: usize = 8;
const IO_DATA_OFFSET: usize = 40;
const EXIT_IO: u32 = 2;
const EXIT_HLT: u32 = 5;

const PAGE: NonZeroUsize = NonZeroUsize::new(4096).expect("it is not zero");
/// The guest's only page, by its physical address.
const CODE_ADDRESS: u64 = 0x1000;
/// ADD AL, BL; OUT 0x10, AL; HLT.
const CODE: [u8; 5] = [0x00, 0xd8, 0xe6, 0x10, 0xf4];

/// Runs a guest on that core of the base.
///
/// # Errors
/// When KVM refuses, or the guest does not add.
pub(crate) fn run_on(core: u32) -> Result<(), Finding> {
    // A thread of its own, so that this process's other threads are not bound to the core.
    let guest = std::thread::spawn(move || {
        bind(core)?;
        run()
    });
    let failed = |_| Finding::new("running a guest failed");
    let run = guest.join().map_err(failed)?;
    run.map_err(|finding| finding.when(&format!("a guest of KVM on core {core}")))
}

/// Binds the calling thread to a core.
fn bind(core: u32) -> Result<(), Finding> {
    let mut set = [0_u64; 16];
    set[core as usize / 64] |= 1 << (core % 64);
    // SAFETY: the set has the size that is told, and is only read.
    let bound = unsafe { libc::sched_setaffinity(0, size_of_val(&set), set.as_ptr().cast()) };
    Ok(Errno::result(bound).map(drop)?)
}

fn run() -> Result<(), Finding> {
    let kvm = File::options().read(true).write(true).open("/dev/kvm")?;
    let machine = opened(&kvm, CREATE_VM)?;
    let memory = Pages::code()?;
    let region = [
        0,
        CODE_ADDRESS,
        PAGE.get() as u64,
        memory.start.as_ptr() as u64,
    ];
    call(&machine, SET_USER_MEMORY_REGION, region.as_ptr().cast_mut())?;
    let processor = opened(&machine, CREATE_VCPU)?;
    let size = call(&kvm, GET_VCPU_MMAP_SIZE, std::ptr::null_mut())?;
    let shared = Pages::of(&processor, size.unsigned_abs() as usize)?;
    let mut segments = [0_u64; SREGS_WORDS];
    call(&processor, GET_SREGS, segments.as_mut_ptr())?;
    // CS: base 0; selector 0, in the upper half of the next word.
    segments[0] = 0;
    segments[1] &= !(0xffff << 32);
    call(&processor, SET_SREGS, segments.as_mut_ptr())?;
    let mut registers = [0_u64; REGS_WORDS];
    for (register, value) in [(RAX, 40), (RBX, 2), (RIP, CODE_ADDRESS), (RFLAGS, 2)] {
        registers[register] = value;
    }
    call(&processor, SET_REGS, registers.as_mut_ptr())?;
    call(&processor, RUN, std::ptr::null_mut())?;
    assert_equal("exit", &shared.half(EXIT_REASON), &EXIT_IO)?;
    let sum = shared.half(shared.half(IO_DATA_OFFSET) as usize) as u8;
    assert_equal("sum", &sum, &42)?;
    call(&processor, RUN, std::ptr::null_mut())?;
    assert_equal("last exit", &shared.half(EXIT_REASON), &EXIT_HLT)
}

fn call(on: &impl AsRawFd, request: u32, argument: *mut u64) -> Result<i32, Errno> {
    // SAFETY: each caller passes what the request reads or writes, of its size, or nothing.
    let answer = unsafe { libc::ioctl(on.as_raw_fd(), libc::Ioctl::from(request), argument) };
    Errno::result(answer)
}

/// A call that answers with a descriptor.
fn opened(on: &impl AsRawFd, request: u32) -> Result<OwnedFd, Errno> {
    let answer = call(on, request, std::ptr::null_mut())?;
    // SAFETY: the descriptor is new, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(answer) })
}

/// Mapped pages.
struct Pages {
    start: NonNull<u8>,
    size: NonZeroUsize,
}

impl Pages {
    /// A page with the guest's code.
    fn code() -> Result<Self, Finding> {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping; it replaces nothing.
        let start = unsafe { mmap_anonymous(None, PAGE, access, MapFlags::MAP_PRIVATE) }?.cast();
        // SAFETY: the page is mapped and as large.
        unsafe { std::ptr::copy(CODE.as_ptr(), start.as_ptr(), CODE.len()) };
        Ok(Self { start, size: PAGE })
    }

    /// What a virtual processor shares.
    fn of(processor: &OwnedFd, size: usize) -> Result<Self, Finding> {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let size = NonZeroUsize::new(size).unwrap_or(PAGE);
        // SAFETY: as above.
        let start = unsafe { mmap(None, size, access, MapFlags::MAP_SHARED, processor, 0) }?;
        Ok(Self {
            start: start.cast(),
            size,
        })
    }

    /// The 32-bit number at an offset; 0 beyond the end.
    fn half(&self, offset: usize) -> u32 {
        if offset > self.size.get() - size_of::<u32>() {
            return 0;
        }
        // SAFETY: it is within the mapping, which KVM does not write while no processor runs.
        unsafe {
            self.start
                .as_ptr()
                .add(offset)
                .cast::<u32>()
                .read_unaligned()
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and no pointer to it is left. Unmapping does not fail.
        let _ = unsafe { munmap(self.start.cast(), self.size.get()) };
    }
}
