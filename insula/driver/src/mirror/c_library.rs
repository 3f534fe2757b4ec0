//! What the kernel knows of the C library's memory, and must forget before that memory is gone.

use std::arch::{asm, global_asm};

use insula_base::error::Error;
use nix::errno::Errno;
use nix::libc::{self, c_long};

use super::failed;

// Addresses of two constants of the C library; 0 where it has none.
global_asm!(
    ".pushsection .data.rel.ro.insula_rseq, \"aw\"",
    ".balign 8",
    ".weak __rseq_offset, __rseq_size",
    ".globl insula_rseq",
    ".hidden insula_rseq",
    "insula_rseq: .quad __rseq_offset, __rseq_size",
    ".popsection",
);

unsafe extern "C" {
    static insula_rseq: [usize; 2];
}

/// Address of this thread's area for restartable sequences, if the C library has one.
fn rseq_area() -> Option<usize> {
    // SAFETY: the assembly above defines it, and only the loader writes it.
    let [offset, size] = unsafe { insula_rseq };
    if offset == 0 || size == 0 {
        return None;
    }
    let thread: usize;
    // SAFETY: 1. They are the addresses of a ptrdiff_t and an unsigned int that never change. 2.
    // The first word of the thread control block is its own address (System V ABI for x86-64).
    unsafe {
        asm!("mov {}, fs:[0]", out(reg) thread, options(nostack, readonly, preserves_flags));
        let (offset, size) = (*(offset as *const isize), *(size as *const u32));
        (size != 0).then(|| thread.wrapping_add_signed(offset))
    }
}

/// Unregisters addresses of the C library's memory, which will be gone, from the kernel: it writes
/// to the area for restartable sequences whenever it migrates the thread.
pub(super) fn unregister() -> Result<(), Error> {
    /// `RSEQ_SIG` of x86, with which the C library registers.
    const SIGNATURE: c_long = 0x5305_3053;
    /// Size of the area as the C library registers it.
    const AREA_SIZE: c_long = 32;
    const UNREGISTER: c_long = 1;
    if let Some(area) = rseq_area() {
        // SAFETY: after unregistering, the kernel does not write there any more.
        let result =
            unsafe { libc::syscall(libc::SYS_rseq, area, AREA_SIZE, UNREGISTER, SIGNATURE) };
        Errno::result(result).map_err(failed("unregistering the C library's rseq area"))?;
    }
    // SAFETY: both only clear addresses in the kernel.
    unsafe {
        libc::syscall(libc::SYS_set_robust_list, 0, 3 * size_of::<usize>());
        libc::syscall(libc::SYS_set_tid_address, 0);
    }
    Ok(())
}
