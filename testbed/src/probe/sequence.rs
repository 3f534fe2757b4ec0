//! A restartable sequence that is under way when its thread loses the core.

use std::arch::asm;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nix::libc;
use nix::sys::wait::waitpid;

use super::processes::begin;
use super::{Named, ProbeError, call};

/// What lies before the place to which the sequence is broken off.
const SIGNATURE: u64 = 0x5305_3053;
/// Rounds after which nobody has broken it off: many seconds.
const ROUNDS: u64 = 20_000_000_000;

/// `struct rseq` as the first kernel had it.
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

pub(super) fn probe() -> Result<(), ProbeError> {
    let seen = Seen {
        area: Area {
            cores: [const { AtomicU32::new(0) }; 2],
            sequence: AtomicU64::new(0),
            more: [const { AtomicU32::new(0) }; 4],
        },
        found: AtomicU64::new(0),
    };
    super::urgency::stay_on_first_core();
    // With the memory of this process, but no area of the C library's.
    let child = begin(deed, &seen, false)?;
    while seen.found.load(Ordering::SeqCst) == 0 {
        std::hint::spin_loop();
    }
    waitpid(child, None).named("waiting")?;
    let end = match seen.found.load(Ordering::SeqCst) {
        1 => "broken off",
        2 => "not broken off",
        3 => "broken off, but still under way",
        _ => "refused",
    };
    println!("the sequence was {end}");
    Ok(())
}

extern "C" fn deed(seen: *mut c_void) -> c_int {
    // SAFETY: the other process waits until this one has ended.
    let seen = unsafe { &*seen.cast::<Seen>() };
    let area = (&raw const seen.area).expose_provenance() as u64;
    let size = size_of::<Area>() as u64;
    // SAFETY: the area stays until this process ends, and its words are the kernel's to write.
    let registered = unsafe { call(libc::SYS_rseq as u64, [area, size, 0, SIGNATURE, 0, 0]) };
    let found = match registered {
        Ok(_) if !is_broken_off(&seen.area) => 2,
        Ok(_) if seen.area.sequence.load(Ordering::SeqCst) != 0 => 3,
        Ok(_) => 1,
        Err(_) => 4,
    };
    seen.found.store(found, Ordering::SeqCst);
    0
}

/// Computes as a sequence, until that is broken off.
fn is_broken_off(area: &Area) -> bool {
    let broken_off: u64;
    // SAFETY: between the labels 3 and 4 it changes nothing but its registers, and behind 5 it goes on as
    // behind 4.
    unsafe {
        asm!(
            ".pushsection .data.insula_sequence, \"aw\", @progbits",
            ".balign 32",
            "2:",
            ".long 0, 0",
            ".quad 3f, 4f - 3f, 5f",
            ".popsection",
            "lea {broken_off}, [rip + 2b]",
            "mov [{word}], {broken_off}",
            "3:",
            "dec {rounds}",
            "jnz 3b",
            "4:",
            "xor {broken_off:e}, {broken_off:e}",
            "jmp 6f",
            ".long {signature}",
            "5:",
            "mov {broken_off:e}, 1",
            "6:",
            word = in(reg) area.sequence.as_ptr(),
            rounds = inout(reg) ROUNDS => _,
            broken_off = out(reg) broken_off,
            signature = const SIGNATURE,
            options(nostack),
        );
    }
    broken_off != 0
}
