//! Restartable sequence (rseq) that is running when its thread loses the core.

use std::arch::asm;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nix::libc;
use nix::sys::wait::waitpid;

use crate::lwk::processes::sharing::start;
use crate::lwk::{Named, ProbeError, call};

/// Word before the abort handler.
const SIGNATURE: u64 = 0x5305_3053;
/// Rounds after which the sequence counts as never aborted: many seconds.
const ROUNDS: u64 = 20_000_000_000;

/// `struct rseq` of the first kernel that had it.
#[repr(C, align(32))]
struct Area {
    cores: [AtomicU32; 2],
    sequence: AtomicU64,
    more: [AtomicU32; 4],
}

struct Seen {
    area: Area,
    found: AtomicU64,
}

pub(crate) fn probe() -> Result<(), ProbeError> {
    let seen = Seen {
        area: Area {
            cores: [const { AtomicU32::new(0) }; 2],
            sequence: AtomicU64::new(0),
            more: [const { AtomicU32::new(0) }; 4],
        },
        found: AtomicU64::new(0),
    };
    super::priorities::stay_on_first_core();
    // In the address space of this process, but without the C library's rseq area.
    let child = start(body, &seen, false)?;
    while seen.found.load(Ordering::SeqCst) == 0 {
        std::hint::spin_loop();
    }
    waitpid(child, None).named("waiting")?;
    let end = match seen.found.load(Ordering::SeqCst) {
        1 => "aborted",
        2 => "not aborted",
        3 => "aborted, but still under way",
        _ => "refused",
    };
    println!("the sequence was {end}");
    Ok(())
}

extern "C" fn body(seen: *mut c_void) -> c_int {
    // SAFETY: the other process waits until this one has ended.
    let seen = unsafe { &*seen.cast::<Seen>() };
    let area = (&raw const seen.area).expose_provenance() as u64;
    let size = size_of::<Area>() as u64;
    // SAFETY: the area stays until this process ends, and only the kernel writes to its words.
    let registered = unsafe { call(libc::SYS_rseq as u64, [area, size, 0, SIGNATURE, 0, 0]) };
    let found = match registered {
        Ok(_) if !is_aborted(&seen.area) => 2,
        Ok(_) if seen.area.sequence.load(Ordering::SeqCst) != 0 => 3,
        Ok(_) => 1,
        Err(_) => 4,
    };
    seen.found.store(found, Ordering::SeqCst);
    0
}

/// Runs a sequence until it is aborted.
fn is_aborted(area: &Area) -> bool {
    let aborted: u64;
    // SAFETY: between the labels 3 and 4 it changes nothing but its registers; the abort handler at
    // 5 continues like 4.
    unsafe {
        asm!(
            ".pushsection .data.insula_sequence, \"aw\", @progbits",
            ".balign 32",
            "2:",
            ".long 0, 0",
            ".quad 3f, 4f - 3f, 5f",
            ".popsection",
            "lea {aborted}, [rip + 2b]",
            "mov [{word}], {aborted}",
            "3:",
            "dec {rounds}",
            "jnz 3b",
            "4:",
            "xor {aborted:e}, {aborted:e}",
            "jmp 6f",
            ".long {signature}",
            "5:",
            "mov {aborted:e}, 1",
            "6:",
            word = in(reg) area.sequence.as_ptr(),
            rounds = inout(reg) ROUNDS => _,
            aborted = out(reg) aborted,
            signature = const SIGNATURE,
            options(nostack),
        );
    }
    aborted != 0
}
