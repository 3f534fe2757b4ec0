//! Memory that another process accesses by process_vm_readv(2), process_vm_writev(2) and
//! `/proc/PID/mem`: its pages may be absent, or shared after a fork; its owner computes, is stopped,
//! or replaces it meanwhile.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use super::mappings::{PAGE, PRIVATE, map, read, unmap, write};
use crate::lwk::{Named, ProbeError, call};

/// Mapped before the fork, and written: copied on write.
const FORKED: u64 = 0x50_0000_0000;
/// Mapped by the child, which does not touch it.
const ABSENT: u64 = 0x51_0000_0000;
/// Mapped by the child for reading alone.
const READ_ONLY: u64 = 0x52_0000_0000;
/// Never mapped.
const NOWHERE: u64 = 0x53_0000_0000;
/// Replaced by the child again and again.
const REPLACED: u64 = 0x54_0000_0000;
const PAGES: u64 = 40;
/// Page of [`FORKED`] whose first word makes the child end.
const END: u64 = PAGES - 1;

pub(crate) fn probe() -> Result<(), ProbeError> {
    map(FORKED, PAGES, PRIVATE).named("mmap")?;
    (0..END).for_each(|page| write(FORKED, page, 100 + page));
    for child in [computes, replaces] {
        let owner = Owner::start(child)?;
        owner.is_read()?;
        owner.is_written()?;
        owner.has_a_file()?;
        owner.is_stopped()?;
        owner.ends()?;
    }
    let own: Vec<u64> = (0..END).map(|page| read(FORKED, page) - page).collect();
    println!("own: {}", own.iter().all(|&word| word == 100));
    dies_meanwhile()
}

/// Computes, without a call, until another process writes to its memory.
fn computes() {
    while read(FORKED, END) == 0 {
        std::hint::spin_loop();
    }
}

/// Replaces memory without a pause.
fn replaces() {
    let flags = PRIVATE | (libc::MAP_ANONYMOUS | libc::MAP_FIXED) as u64;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    while read(FORKED, END) == 0 {
        let arguments = [REPLACED, PAGES * PAGE, protection, flags, u64::MAX, 0];
        // SAFETY: no Rust value is there.
        let _ = unsafe { call(libc::SYS_mmap as u64, arguments) };
    }
}

/// The process whose memory is accessed.
struct Owner(Pid);

impl Owner {
    fn start(action: fn()) -> Result<Self, ProbeError> {
        let (from, to) = nix::unistd::pipe().named("pipe")?;
        // SAFETY: this program has one thread here.
        match unsafe { fork() }.named("fork")? {
            ForkResult::Child => {
                let is_mapped = prepare().and_then(|()| nix::unistd::write(&to, b"x"));
                if is_mapped.is_ok() {
                    action();
                }
                // SAFETY: it ends the process, without the parent's exit handlers.
                unsafe { libc::_exit(0) }
            }
            ForkResult::Parent { child } => {
                nix::unistd::read(&from, &mut [0]).named("the child's word")?;
                Ok(Self(child))
            }
        }
    }

    /// Absent pages have zeros, those shared with the parent what it has written.
    fn is_read(&self) -> Result<(), ProbeError> {
        let mut page = vec![1; PAGE as usize];
        println!("absent: {:?}, {}", self.read(ABSENT, &mut page), sum(&page));
        let mut all = vec![1; (PAGES * PAGE) as usize];
        println!(
            "more: {:?}, {}",
            self.read(ABSENT + PAGE, &mut all),
            sum(&all)
        );
        println!("shared: {:?}, {}", self.read(FORKED, &mut all), sum(&all));
        println!(
            "read only: {:?}, {}",
            self.read(READ_ONLY, &mut page),
            sum(&page)
        );
        println!("nothing: {:?}", self.read(NOWHERE, &mut page));
        let end = ABSENT + (PAGES + 2) * PAGE;
        println!("in part: {:?}", self.read(end - 2 * PAGE, &mut all));
        for _ in 0..200 {
            if self.read(REPLACED, &mut all) != Ok(all.len() as u64) || sum(&all) != 0 {
                return Err(ProbeError::Wrong(
                    "what is replaced was not read".to_owned(),
                ));
            }
        }
        Ok(())
    }

    /// What is written is the owner's alone.
    fn is_written(&self) -> Result<(), ProbeError> {
        let bytes = vec![7; (3 * PAGE) as usize];
        for (name, at) in [
            ("absent", ABSENT + 20 * PAGE),
            ("shared", FORKED + 4 * PAGE + 8),
            ("read only", READ_ONLY),
            ("nothing", NOWHERE),
        ] {
            let mut back = vec![0; bytes.len()];
            let written = self.write(at, &bytes);
            println!(
                "{name}: {written:?}, {:?}, {}",
                self.read(at, &mut back),
                sum(&back)
            );
        }
        Ok(())
    }

    fn has_a_file(&self) -> Result<(), ProbeError> {
        let memory = self.memory()?;
        let mut bytes = [1; 64];
        for at in [ABSENT + 30 * PAGE, FORKED + 10 * PAGE, NOWHERE] {
            let found = memory.read_at(&mut bytes, at).map_err(|error| error.kind());
            println!("file: {found:?}, {}", sum(&bytes));
        }
        for at in [ABSENT + 31 * PAGE, FORKED + 11 * PAGE, NOWHERE] {
            let written = memory
                .write_at(&[9; 64], at)
                .map_err(|error| error.raw_os_error());
            let found = self.read(at, &mut bytes);
            println!("file: {written:?}, {found:?}, {}", sum(&bytes));
        }
        Ok(())
    }

    fn memory(&self) -> Result<File, ProbeError> {
        let path = format!("/proc/{}/mem", self.0);
        let wrong = |error| ProbeError::Wrong(format!("{path}: {error}"));
        let mut options = OpenOptions::new();
        options.read(true).write(true).open(&path).map_err(wrong)
    }

    /// Its memory can be accessed also while nothing of it runs.
    fn is_stopped(&self) -> Result<(), ProbeError> {
        kill(self.0, Signal::SIGSTOP).named("SIGSTOP")?;
        let stopped = waitpid(self.0, Some(WaitPidFlag::WUNTRACED)).named("waitpid")?;
        let mut bytes = [1; 64];
        println!(
            "stopped: {}",
            stopped == WaitStatus::Stopped(self.0, Signal::SIGSTOP)
        );
        for at in [ABSENT + 35 * PAGE, FORKED + 20 * PAGE] {
            println!("{:?}, {}", self.read(at, &mut bytes), sum(&bytes));
            println!("{:?}", self.write(at + PAGE, &[3; 16]));
        }
        kill(self.0, Signal::SIGCONT).named("SIGCONT")
    }

    /// It ends when its memory says so.
    fn ends(&self) -> Result<(), ProbeError> {
        println!("end: {:?}", self.write(FORKED + END * PAGE, &[1]));
        let ended = waitpid(self.0, None).named("waitpid")?;
        println!("ended: {}", ended == WaitStatus::Exited(self.0, 0));
        println!("then: {:?}", self.read(ABSENT, &mut [0]));
        Ok(())
    }

    fn read(&self, at: u64, to: &mut [u8]) -> Result<u64, Errno> {
        self.transfer(
            libc::SYS_process_vm_readv,
            at,
            (to.as_mut_ptr() as u64, to.len()),
        )
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<u64, Errno> {
        self.transfer(
            libc::SYS_process_vm_writev,
            at,
            (from.as_ptr() as u64, from.len()),
        )
    }

    fn transfer(&self, number: i64, at: u64, (own, size): (u64, usize)) -> Result<u64, Errno> {
        let vectors = [own, size as u64, at, size as u64];
        let local = vectors.as_ptr().expose_provenance() as u64;
        let pid = u64::from(self.0.as_raw().cast_unsigned());
        // SAFETY: the vectors name a slice of this process.
        unsafe { call(number as u64, [pid, local, 1, local + 16, 1, 0]) }
    }
}

/// Maps memory, prints its address, and computes until another process writes to it.
pub(crate) fn absent() -> Result<(), ProbeError> {
    map(ABSENT, PAGES + 2, PRIVATE).named("mmap")?;
    println!("{ABSENT:x}");
    while read(ABSENT, 0) == 0 {
        std::hint::spin_loop();
    }
    Ok(())
}

/// Maps the child's own memory.
fn prepare() -> Result<(), Errno> {
    map(ABSENT, PAGES + 2, PRIVATE)?;
    map(REPLACED, PAGES, PRIVATE)?;
    map(READ_ONLY, PAGES, PRIVATE)?;
    write(READ_ONLY, 0, 5);
    let arguments = [READ_ONLY, PAGES * PAGE, libc::PROT_READ as u64, 0, 0, 0];
    // SAFETY: no Rust value is there.
    unsafe { call(libc::SYS_mprotect as u64, arguments) }?;
    Ok(())
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|&byte| u64::from(byte)).sum()
}

/// A process is killed while its memory is read, each time in absent pages.
fn dies_meanwhile() -> Result<(), ProbeError> {
    for _ in 0..10 {
        let owner = Owner::start(replaces)?;
        let killer = owner.0;
        let thread = std::thread::spawn(move || kill(killer, Signal::SIGKILL));
        let mut all = vec![0; (PAGES * PAGE) as usize];
        // Once it is dead it has no memory; then it is gone.
        while !matches!(
            waitpid(owner.0, Some(WaitPidFlag::WNOHANG)),
            Ok(WaitStatus::Signaled(..))
        ) {
            let _ = owner.read(REPLACED, &mut all);
        }
        let killed = thread
            .join()
            .map_err(|_| ProbeError::Wrong("a thread".to_owned()))?;
        killed.named("kill")?;
    }
    println!("killed; {:?}", unmap(FORKED, PAGES));
    Ok(())
}
