//! Extended registers across calls, and across migrations between cores.

use std::arch::asm;
use std::thread;

use nix::libc;

use crate::lwk::ProbeError;

const ROUNDS: u64 = 300;

/// More threads than cores, each with values of its own in a register that no call changes.
pub(crate) fn probe() -> Result<(), ProbeError> {
    let cores = thread::available_parallelism().map_or(1, usize::from) as u64;
    let kept = thread::scope(|scope| {
        let threads: Vec<_> = (1..=2 * cores + 1)
            .map(|own| scope.spawn(move || (0..ROUNDS).all(|round| is_kept(own, round, cores))))
            .collect();
        let kept = threads.into_iter().map(|thread| thread.join());
        kept.filter(|kept| matches!(kept, Ok(true))).count() as u64
    });
    println!("all threads have kept theirs: {}", kept == 2 * cores + 1);
    Ok(())
}

/// Makes in turn sched_yield, a delegated call, and a migration to another core.
fn is_kept(own: u64, round: u64, cores: u64) -> bool {
    let word = own << 32 | round;
    let set = 1_u64 << ((own + round) % cores);
    let arguments = [0, size_of_val(&set) as u64, (&raw const set).addr() as u64];
    let (number, arguments) = match round % 3 {
        0 => (libc::SYS_sched_yield, [0; 3]),
        1 => (libc::SYS_getpgid, [0; 3]),
        _ => (libc::SYS_sched_setaffinity, arguments),
    };
    // SAFETY: none of these calls writes to the program's memory.
    unsafe { over_a_call(word, number as u64, arguments) == word }
}

/// Value of a register after a call, set to `word` before it.
///
/// # Safety
/// The call does no harm.
unsafe fn over_a_call(word: u64, number: u64, [first, second, third]: [u64; 3]) -> u64 {
    let found: u64;
    // SAFETY: all registers that the call and the code change are named; the call is the caller's.
    unsafe {
        asm!(
            "movq xmm9, {word}",
            "syscall",
            "movq {word}, xmm9",
            word = inout(reg) word => found,
            inout("rax") number => _,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            out("rcx") _,
            out("r11") _,
            out("xmm9") _,
            options(nostack),
        );
    }
    found
}
