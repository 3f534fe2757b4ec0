//! Layout of a program's address space, and its stack limit.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output};

use nix::errno::Errno;
use nix::libc;
use nix::sys::resource::{Resource, setrlimit};

use super::mappings::{PAGE, PRIVATE};
use crate::lwk::{ProbeError, call};

const SELF: &str = "/proc/self/exe";
/// Position-independent, dynamically linked program.
const MOVABLE: &str = "/usr/bin/openssl";
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

pub(crate) fn probe() -> Result<(), ProbeError> {
    println!("personality: {:?}", personality(0xffff_ffff));
    for not_random in [false, true] {
        println!("not at random: {not_random}");
        for name in ["stack", "mapping", "heap"] {
            let places = places(not_random, &mut || {
                place(Command::new(SELF).args(["place", name]))
            })?;
            println!("{name}: {places}");
        }
        let entry = places(not_random, &mut || {
            let mut program = Command::new(MOVABLE);
            entry(program.arg("version").env("LD_SHOW_AUXV", "1"))
        });
        println!("program: {}", entry?);
    }
    for (limit, depth) in [
        (256 * KIB, 100 * KIB),
        (256 * KIB, 2 * MIB),
        (8 * MIB, 7 * MIB),
        (8 * MIB, 9 * MIB),
        (64 * MIB, 50 * MIB),
        (64 * MIB, 66 * MIB),
    ] {
        let ended = output(&mut deep(limit, depth))?;
        let killed = ended.status.signal().is_some();
        println!("{depth} of {limit} bytes of stack: {}", !killed);
    }
    Ok(())
}

fn personality(wanted: u64) -> Result<u64, Errno> {
    // SAFETY: it only affects where executed programs are loaded.
    unsafe { call(libc::SYS_personality as u64, [wanted, 0, 0, 0, 0, 0]) }
}

/// Number of distinct addresses in three runs.
fn places(
    not_random: bool,
    find: &mut dyn FnMut() -> Result<String, ProbeError>,
) -> Result<usize, ProbeError> {
    let wanted = if not_random {
        libc::ADDR_NO_RANDOMIZE
    } else {
        0
    };
    let before = personality(wanted as u64);
    let found: Result<BTreeSet<String>, _> = (0..3).map(|_| find()).collect();
    let _ = before.map(personality);
    found.map(|found| found.len())
}

fn output(program: &mut Command) -> Result<Output, ProbeError> {
    let output = program.output();
    output.map_err(|error| ProbeError::Wrong(format!("{program:?}: {error}")))
}

fn place(program: &mut Command) -> Result<String, ProbeError> {
    Ok(String::from_utf8_lossy(&output(program)?.stdout).into_owned())
}

fn entry(program: &mut Command) -> Result<String, ProbeError> {
    let output = place(program)?;
    let line = output.lines().find(|line| line.starts_with("AT_ENTRY"));
    let line = line.map(str::to_owned);
    line.ok_or_else(|| ProbeError::Wrong(format!("{program:?} does not print its entry: {output}")))
}

/// Prints the address of a part of this program.
pub(crate) fn print_address(name: &str) -> Result<(), ProbeError> {
    let own = 0_u8;
    let place = match name {
        "stack" => black_box(&raw const own).addr() as u64,
        "mapping" => {
            let flags = PRIVATE | libc::MAP_ANONYMOUS as u64;
            let arguments = [0, PAGE, 0, flags, u64::MAX, 0];
            // SAFETY: it replaces nothing.
            unsafe { call(libc::SYS_mmap as u64, arguments) }.unwrap_or_default()
        }
        // SAFETY: it only queries the end of the heap.
        "heap" => unsafe { call(libc::SYS_brk as u64, [0; 6]) }.unwrap_or_default(),
        _ => return Err(ProbeError::Unknown),
    };
    println!("{place:x}");
    Ok(())
}

fn deep(limit: u64, depth: u64) -> Command {
    let mut program = Command::new(SELF);
    program.args(["deep", &depth.to_string()]);
    // SAFETY: one call, which allocates nothing.
    unsafe {
        program.pre_exec(move || Ok(setrlimit(Resource::RLIMIT_STACK, limit, 64 * MIB)?));
    }
    program
}

/// Uses that many bytes of its stack.
pub(crate) fn grow_stack(depth: u64) -> Result<(), ProbeError> {
    let filled = use_stack(depth);
    println!("{filled}");
    Ok(())
}

fn use_stack(depth: u64) -> u64 {
    let piece = black_box([1_u8; 4096]);
    match depth.checked_sub(PAGE) {
        None | Some(0) => u64::from(piece[0]),
        Some(rest) => use_stack(rest) + u64::from(black_box(&piece)[4095]),
    }
}
