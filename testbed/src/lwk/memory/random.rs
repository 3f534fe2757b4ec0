//! Random sequences of what programs do to mapped files: map, read, write on either side, truncate,
//! protect, move, advise, fork, vfork, and have pages taken back. Every result is printed: a kernel is
//! right if it prints what Linux prints.

use std::arch::asm;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use nix::errno::Errno;
use nix::libc;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork, pipe};

use super::mappings::{PAGE, PRIVATE, SHARED};
use super::shared_files::{memfd, unnamed};
use crate::lwk::processes::sharing::start;
use crate::lwk::{Named, ProbeError, call};

/// Places at which files are mapped, with room to grow.
const PLACES: [u64; 3] = [0x3c_0000_0000, 0x3c_4000_0000, 0x3c_8000_0000];
/// Pages of a file at first, and of a place.
const PAGES: u64 = 12;
const READ: u64 = libc::PROT_READ as u64;
const WRITE: u64 = libc::PROT_WRITE as u64;

/// Where the program goes on after an access that raised a signal, and the signal.
static RESUME: AtomicU64 = AtomicU64::new(0);
static SIGNAL: AtomicI32 = AtomicI32::new(0);

pub(crate) fn probe(seed: u64, steps: u64) -> Result<(), ProbeError> {
    catch(libc::SIGSEGV)?;
    catch(libc::SIGBUS)?;
    let mut play = Play {
        files: [memfd()?, unnamed("/var/tmp")?],
        random: Random(seed),
        values: 0,
    };
    for file in &play.files {
        let sized = file.set_len(PAGES * PAGE);
        sized.map_err(|error| ProbeError::Wrong(format!("sizing a file: {error}")))?;
    }
    for step in 0..steps {
        let line = play.step()?;
        println!("{step}: {line}");
    }
    for file in &play.files {
        println!("{:016x}", content(file)?);
    }
    Ok(())
}

/// Has a signal of a bad access end the access.
fn catch(signal: i32) -> Result<(), ProbeError> {
    // SAFETY: all zero is a valid `struct sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = skip as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler only writes atomics and the context that it is given.
    let result = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    Errno::result(result).named("sigaction").map(drop)
}

extern "C" fn skip(signal: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    SIGNAL.store(signal, Ordering::Relaxed);
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel passes the interrupted context.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    registers[libc::REG_RIP as usize] = RESUME.load(Ordering::Relaxed).cast_signed();
}

/// Reads a word, or returns the signal.
fn load(address: u64) -> Result<u64, i32> {
    SIGNAL.store(0, Ordering::Relaxed);
    let mut value = 0_u64;
    // SAFETY: a read of any address; the handler resumes behind it.
    unsafe {
        asm!(
            "lea {next}, [rip + 2f]",
            "mov [{resume}], {next}",
            "mov {value}, [{address}]",
            "2:",
            next = out(reg) _,
            resume = in(reg) RESUME.as_ptr(),
            address = in(reg) address,
            value = inout(reg) value,
            options(nostack, preserves_flags),
        );
    }
    match SIGNAL.load(Ordering::Relaxed) {
        0 => Ok(value),
        signal => Err(signal),
    }
}

/// Writes a word, or returns the signal.
fn store(address: u64, value: u64) -> Result<(), i32> {
    SIGNAL.store(0, Ordering::Relaxed);
    // SAFETY: nothing of this program is in the places; the handler resumes behind the access.
    unsafe {
        asm!(
            "lea {next}, [rip + 2f]",
            "mov [{resume}], {next}",
            "mov [{address}], {value}",
            "2:",
            next = out(reg) _,
            resume = in(reg) RESUME.as_ptr(),
            address = in(reg) address,
            value = in(reg) value,
            options(nostack, preserves_flags),
        );
    }
    match SIGNAL.load(Ordering::Relaxed) {
        0 => Ok(()),
        signal => Err(signal),
    }
}

/// Numbers that look random, the same for the same seed (splitmix64).
struct Random(u64);

impl Random {
    /// Returns a number below a limit.
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % limit
    }
}

fn make(number: i64, arguments: [u64; 6]) -> Result<u64, Errno> {
    // SAFETY: no Rust value is in the places.
    unsafe { call(number as u64, arguments) }
}

/// FNV-1a of a file's content.
fn content(file: &File) -> Result<u64, ProbeError> {
    let io = |error| ProbeError::Wrong(format!("reading a file: {error}"));
    let mut bytes = vec![0; file.metadata().map_err(io)?.len() as usize];
    file.read_exact_at(&mut bytes, 0).map_err(io)?;
    let mix = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    Ok(bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix))
}

struct Play {
    files: [File; 2],
    random: Random,
    /// Number of values written.
    values: u64,
}

impl Play {
    /// Takes a step, and returns what it was and its result.
    fn step(&mut self) -> Result<String, ProbeError> {
        let (place, page) = (self.place(), self.random.below(PAGES));
        let address = place + page * PAGE;
        let size = (1 + self.random.below(PAGES - page)) * PAGE;
        Ok(match self.random.below(17) {
            0 | 1 => self.map(address, size),
            2 => format!(
                "unmap {:?}",
                make(libc::SYS_munmap, [address, size, 0, 0, 0, 0])
            ),
            3..=5 => format!("load {:?}", load(address)),
            6 | 7 => format!("store {:?}", store(address, self.value())),
            8 => self.write(page),
            9 => self.resize(),
            10 => self.protect(address, size),
            11 => self.advise(address, size),
            12 => self.remap(address, size),
            13 | 14 => self.call(address, page),
            15 => self.vfork(address)?,
            _ => self.fork(address)?,
        })
    }

    fn place(&mut self) -> u64 {
        PLACES[self.random.below(PLACES.len() as u64) as usize]
    }

    fn value(&mut self) -> u64 {
        self.values += 1;
        self.values
    }

    fn file(&mut self) -> &File {
        &self.files[self.random.below(2) as usize]
    }

    fn map(&mut self, address: u64, size: u64) -> String {
        let (kind, protection) = match self.random.below(6) {
            0 => (PRIVATE, READ),
            1 => (SHARED, READ),
            2 => (SHARED, READ | WRITE),
            3 => (PRIVATE | libc::MAP_POPULATE as u64, READ | WRITE),
            _ => (PRIVATE, READ | WRITE),
        };
        let offset = self.random.below(4) * PAGE;
        let fd = self.file().as_raw_fd() as u64;
        let flags = kind | libc::MAP_FIXED as u64;
        let arguments = [address, size, protection, flags, fd, offset];
        format!("map {:x?}", make(libc::SYS_mmap, arguments))
    }

    fn write(&mut self, page: u64) -> String {
        let (value, at) = (self.value(), page * PAGE);
        let written = self.file().write_at(&value.to_le_bytes(), at);
        format!("write {:?}", written.ok())
    }

    /// Has the kernel read a word of a file into memory, or write one.
    fn call(&mut self, address: u64, page: u64) -> String {
        let number = [libc::SYS_pread64, libc::SYS_pwrite64][self.random.below(2) as usize];
        let fd = self.file().as_raw_fd() as u64;
        let done = make(number, [fd, address + 8, 8, page * PAGE, 0, 0]);
        format!("call {number} {done:?} {:?}", load(address + 8))
    }

    fn resize(&mut self) -> String {
        let pages = 4 + self.random.below(PAGES);
        format!("resize {}", self.file().set_len(pages * PAGE).is_ok())
    }

    fn protect(&mut self, address: u64, size: u64) -> String {
        let protection = [0, READ, READ | WRITE][self.random.below(3) as usize];
        let arguments = [address, size, protection, 0, 0, 0];
        format!("protect {:?}", make(libc::SYS_mprotect, arguments))
    }

    fn advise(&mut self, address: u64, size: u64) -> String {
        let advice = [
            libc::MADV_DONTNEED,
            libc::MADV_PAGEOUT,
            libc::MADV_WILLNEED,
            libc::MADV_POPULATE_WRITE,
            libc::MADV_DONTFORK,
            libc::MADV_DOFORK,
        ];
        let advice = advice[self.random.below(6) as usize] as u64;
        let arguments = [address, size, advice, 0, 0, 0];
        let result = make(libc::SYS_madvise, arguments);
        // Linux up to 6.1 looks behind a gap for pages that cannot be populated, and reports those.
        if advice == libc::MADV_POPULATE_WRITE as u64 {
            return format!("advise {advice} {}", result.is_ok());
        }
        format!("advise {advice} {result:?}")
    }

    fn remap(&mut self, address: u64, size: u64) -> String {
        let to = self.place() + self.random.below(2) * 64 * PAGE;
        let grown = size + self.random.below(3) * PAGE;
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
        let arguments = [address, size, grown, flags, to, 0];
        format!("remap {:x?}", make(libc::SYS_mremap, arguments))
    }

    /// A child that shares the memory writes: the parent sees it.
    fn vfork(&mut self, address: u64) -> Result<String, ProbeError> {
        extern "C" fn body(shared: *mut c_void) -> c_int {
            // SAFETY: the parent waits until this process has ended.
            let (address, value) = unsafe { *shared.cast::<(u64, u64)>() };
            let before = load(address);
            let stored = store(address, value);
            let after = load(address);
            c_int::from(before.is_ok())
                | c_int::from(stored.is_ok()) << 1
                | c_int::from(after == Ok(value)) << 2
        }
        let shared = (address, self.value());
        let child = start(body, &shared, true)?;
        let ended = waitpid(child, None).named("waiting for a child")?;
        let status = exit_status(ended);
        Ok(format!("vfork {status} {:?}", load(address)))
    }

    /// A child sees what was there at the fork, or what its parent has written to shared memory since,
    /// and writes.
    fn fork(&mut self, address: u64) -> Result<String, ProbeError> {
        let values = (self.value(), self.value());
        let before = load(address);
        let (from, to) = pipe().named("pipe")?;
        // SAFETY: this program has one thread here.
        let child = match unsafe { fork() }.named("fork")? {
            ForkResult::Child => {
                let is_told = nix::unistd::read(&from, &mut [0]).is_ok();
                let is_same = load(address) == before;
                let stored = store(address, values.0).is_ok();
                let status = i32::from(is_told) | i32::from(is_same) << 1 | i32::from(stored) << 2;
                // SAFETY: it ends the process, without the parent's exit handlers.
                unsafe { libc::_exit(status) }
            }
            ForkResult::Parent { child } => child,
        };
        let stored = store(address, values.1);
        nix::unistd::write(&to, &[0]).named("write")?;
        let status = exit_status(waitpid(child, None).named("waiting for a child")?);
        Ok(format!("fork {stored:?} {status} {:?}", load(address)))
    }
}

fn exit_status(ended: WaitStatus) -> i32 {
    match ended {
        WaitStatus::Exited(_, status) => status,
        _ => -1,
    }
}
