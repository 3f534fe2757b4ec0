//! Calls for PCI functions: wrong ones are refused, and who ends leaves nothing behind. The function's
//! address is that of a real one that the node was given.

use std::time::Duration;

use insula_abi::pci::{
    PCI_BLOCK_MAX, PCI_DECODE, PCI_DMA, PCI_MEMORY_MAX, PCI_MESSAGES_MAX, PCI_NO_ENDPOINT,
    PciFunction, PciMemory, SYS_PCI_ALLOCATE, SYS_PCI_CLAIM, SYS_PCI_ENABLE, SYS_PCI_INTERRUPT,
    SYS_PCI_LIST, SYS_PCI_MAP, SYS_PCI_READ, SYS_PCI_RELEASE,
};
use insula_abi::server::{SYS_ENDPOINT_CLOSE, SYS_ENDPOINT_CREATE, SYS_ENDPOINT_OPEN};
use insula_server::pci::PciAddress;
use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Uid, fork};

use super::{Named, ProbeError, call, in_a_child};

const PAGE: u64 = 4096;
/// All calls but the list.
const CALLS: [u64; 7] = [
    SYS_PCI_CLAIM,
    SYS_PCI_RELEASE,
    SYS_PCI_ENABLE,
    SYS_PCI_READ,
    SYS_PCI_MAP,
    SYS_PCI_INTERRUPT,
    SYS_PCI_ALLOCATE,
];

/// Plays everything; so many times a process that has the function is killed at a random moment.
pub(super) fn probe(address: &str, kills: u64) -> Result<(), ProbeError> {
    let address: PciAddress = address.parse().map_err(|_| ProbeError::Unknown)?;
    let address = u64::from(address.number());
    is_listed(address)?;
    others_are_refused(address)?;
    wrong_calls_are_refused(address)?;
    registers_are_the_programs_alone(address)?;
    wrong_interrupts_are_refused(address)?;
    memory_has_a_limit(address)?;
    make(SYS_PCI_RELEASE, [address, 0, 0, 0]).named("release")?;
    ends_at_random(address, kills)
}

fn make(number: u64, [a, b, c, d]: [u64; 4]) -> Result<u64, Errno> {
    // SAFETY: pointers are those of this file's own values, or lead nowhere.
    unsafe { call(number, [a, b, c, d, 0, 0]) }
}

/// Fails unless a call has that result.
fn fails(what: &str, found: Result<u64, Errno>, expected: Errno) -> Result<(), ProbeError> {
    match found {
        Err(errno) if errno == expected => Ok(()),
        found => Err(ProbeError::Wrong(format!(
            "{what}: {found:?}, not {expected}"
        ))),
    }
}

fn allocate(address: u64, size: u64) -> Result<PciMemory, Errno> {
    let mut memory = PciMemory {
        size,
        ..PciMemory::default()
    };
    let at = (&raw mut memory).expose_provenance() as u64;
    make(SYS_PCI_ALLOCATE, [address, at, 0, 0])?;
    Ok(memory)
}

fn is_listed(address: u64) -> Result<(), ProbeError> {
    let mut listed = [PciFunction::default(); 2];
    let at = listed.as_mut_ptr().expose_provenance() as u64;
    let all = make(SYS_PCI_LIST, [at, 2, 0, 0]).named("list")?;
    let [first, second] = listed;
    let is_right = all == 1
        && u64::from(first.address) == address
        && (first.class_code, first.owner) == (0x01_0802, 0)
        && first.bars[0] >= 2 * PAGE
        && second == PciFunction::default();
    match is_right {
        true => fails(
            "a list nowhere",
            make(SYS_PCI_LIST, [8, 2, 0, 0]),
            Errno::EFAULT,
        ),
        false => Err(ProbeError::Wrong(format!("the list: {listed:x?}"))),
    }
}

/// Who may not, and who comes second. The function is claimed afterwards.
fn others_are_refused(address: u64) -> Result<(), ProbeError> {
    for other in [address ^ 1, 0, u64::MAX, address | 1 << 32] {
        for number in CALLS {
            fails(
                "a function elsewhere",
                make(number, [other, 0, 0, 0]),
                Errno::ENODEV,
            )?;
        }
    }
    for number in &CALLS[1..6] {
        fails(
            "without a claim",
            make(*number, [address, 0, 4, PAGE]),
            Errno::EACCES,
        )?;
    }
    fails(
        "memory without a claim",
        allocate(address, PAGE).map(|_| 0),
        Errno::EACCES,
    )?;
    child_fails("a claim by nobody", Errno::EPERM, || {
        let nobody = Uid::from_raw(65_534);
        nix::unistd::setresuid(nobody, nobody, nobody)?;
        make(SYS_PCI_CLAIM, [address, 0, 0, 0])
    })?;
    make(SYS_PCI_CLAIM, [address, 0, 0, 0]).named("claim")?;
    let again = || make(SYS_PCI_CLAIM, [address, 0, 0, 0]);
    fails("a second claim", again(), Errno::EBUSY)?;
    child_fails("a child's claim", Errno::EBUSY, again)?;
    child_fails("a child's release", Errno::EACCES, || {
        make(SYS_PCI_RELEASE, [address, 0, 0, 0])
    })
}

/// Makes a call in a child process, which has to fail so.
fn child_fails(
    what: &str,
    expected: Errno,
    make: impl FnOnce() -> Result<u64, Errno>,
) -> Result<(), ProbeError> {
    let ended = in_a_child(|| {
        let code = make().err().map_or(0, |errno| errno as i32);
        // SAFETY: it ends the process.
        unsafe { libc::_exit(code) }
    })?;
    match ended {
        WaitStatus::Exited(_, code) if code == expected as i32 => Ok(()),
        ended => Err(ProbeError::Wrong(format!(
            "{what}: {ended:?}, not {expected}"
        ))),
    }
}

fn wrong_calls_are_refused(address: u64) -> Result<(), ProbeError> {
    for flags in [4, u64::MAX, PCI_DMA << 32] {
        fails(
            "flags",
            make(SYS_PCI_ENABLE, [address, flags, 0, 0]),
            Errno::EINVAL,
        )?;
    }
    for (offset, size) in [(4096, 4), (2, 4), (0, 0), (0, 8), (u64::MAX, 1)] {
        let read = make(SYS_PCI_READ, [address, offset, size, 0]);
        fails("an offset", read, Errno::EINVAL)?;
    }
    for (bar, offset, size) in [
        (6, 0, PAGE),
        (u64::MAX, 0, PAGE),
        (1, 0, PAGE),
        (0, 0, 0),
        (0, 0, PAGE + 1),
        (0, 1, PAGE),
        (0, u64::MAX - PAGE + 1, PAGE),
        (0, 0, 1 << 40),
    ] {
        let mapped = make(SYS_PCI_MAP, [address, bar, offset, size]);
        fails("a part of a BAR", mapped, Errno::EINVAL)?;
    }
    let nowhere = make(SYS_PCI_ALLOCATE, [address, 8, 0, 0]);
    fails("memory nowhere", nowhere, Errno::EFAULT)?;
    fails("no memory", allocate(address, 0).map(|_| 0), Errno::EINVAL)?;
    for size in [PCI_BLOCK_MAX + 1, u64::MAX - PAGE, u64::MAX] {
        fails(
            "too much memory",
            allocate(address, size).map(|_| 0),
            Errno::ENOMEM,
        )?;
    }
    let id = make(SYS_PCI_READ, [address, 0, 2, 0]).named("read")?;
    match id {
        0 | 0xffff => Err(ProbeError::Wrong(format!("the vendor: {id:#x}"))),
        _ => Ok(()),
    }
}

/// The base cannot reach registers, children do not inherit them, and they stay uncached where they are.
fn registers_are_the_programs_alone(address: u64) -> Result<(), ProbeError> {
    let start = make(SYS_PCI_MAP, [address, 0, 0, PAGE]).named("map")?;
    make(SYS_PCI_ENABLE, [address, PCI_DECODE, 0, 0]).named("enable")?;
    let version = || {
        let register = std::ptr::with_exposed_provenance::<u32>(start as usize + 8);
        // SAFETY: a register of an NVMe controller that says its version.
        unsafe { register.read_volatile() }
    };
    let found = version();
    if !(0x1_0000..0x3_0000).contains(&found) {
        return Err(ProbeError::Wrong(format!("its version: {found:#x}")));
    }
    let on = |number: i64, words: [u64; 5]| {
        let [a, b, c, d, e] = words;
        // SAFETY: as of `make`.
        unsafe { call(number.cast_unsigned(), [a, b, c, d, e, 0]) }
    };
    let null = std::fs::File::create("/tmp/registers").map_err(|_| ProbeError::Unknown)?;
    let file = std::os::fd::AsRawFd::as_raw_fd(&null) as u64;
    let written = on(libc::SYS_write, [file, start, 64, 0, 0]);
    fails("written by the base", written, Errno::EFAULT)?;
    let by_kernel = on(libc::SYS_futex, [start, 0, 0, 0, 0]);
    fails("read by the kernel", by_kernel, Errno::EFAULT)?;
    let protected = on(libc::SYS_mprotect, [start, PAGE, 1, 0, 0]);
    fails("protected", protected, Errno::EACCES)?;
    let moved = on(libc::SYS_mremap, [start, PAGE, 2 * PAGE, 1, 0]);
    fails("moved", moved, Errno::EINVAL)?;
    const INHERIT: u64 = 11;
    let inherited = on(libc::SYS_madvise, [start, PAGE, INHERIT, 0, 0]);
    fails("inherited", inherited, Errno::EINVAL)?;
    let ended = in_a_child(|| {
        std::hint::black_box(version());
    })?;
    match ended {
        WaitStatus::Signaled(_, Signal::SIGSEGV, _) => {}
        ended => return Err(ProbeError::Wrong(format!("a child reads them: {ended:?}"))),
    }
    on(libc::SYS_munmap, [start, PAGE, 0, 0, 0]).named("unmap")?;
    Ok(())
}

/// A message arrives only at an endpoint that the caller serves, and only while the function decodes.
fn wrong_interrupts_are_refused(address: u64) -> Result<(), ProbeError> {
    let name = b"interrupts";
    let named = |number| {
        let at = name.as_ptr().expose_provenance() as u64;
        make(number, [at, name.len() as u64, 0, 0])
    };
    let own = named(SYS_ENDPOINT_CREATE).named("an endpoint")?;
    let clients = named(SYS_ENDPOINT_OPEN).named("the endpoint as a client")?;
    let interrupt = |message, endpoint| make(SYS_PCI_INTERRUPT, [address, message, endpoint, 0]);
    for endpoint in [clients, 200, PCI_NO_ENDPOINT - 1] {
        fails("no endpoint", interrupt(0, endpoint), Errno::EBADF)?;
    }
    for message in [PCI_MESSAGES_MAX, 2047, u64::MAX] {
        fails("a message", interrupt(message, own), Errno::EINVAL)?;
    }
    // Again, at none, and by the ends of endpoint and decoding.
    for endpoint in [own, own, PCI_NO_ENDPOINT, PCI_NO_ENDPOINT, own] {
        interrupt(0, endpoint).named("interrupt")?;
    }
    make(SYS_ENDPOINT_CLOSE, [own, 0, 0, 0]).named("close")?;
    fails("a closed endpoint", interrupt(0, own), Errno::EBADF)?;
    make(SYS_PCI_ENABLE, [address, 0, 0, 0]).named("decode no more")?;
    let own = named(SYS_ENDPOINT_CREATE).named("another endpoint")?;
    fails("without decoding", interrupt(0, own), Errno::EINVAL)
}

/// Memory is the claim's until the release, also when it is not mapped any more.
fn memory_has_a_limit(address: u64) -> Result<(), ProbeError> {
    let mut bytes = 0;
    let last = loop {
        match allocate(address, PCI_BLOCK_MAX) {
            Ok(memory) => {
                bytes += memory.size;
                let first = std::ptr::with_exposed_provenance_mut::<u64>(memory.start as usize);
                // SAFETY: it was just mapped.
                if unsafe { first.replace(u64::MAX) } != 0 {
                    return Err(ProbeError::Wrong("memory with old content".into()));
                }
                let size = memory.size as usize;
                // SAFETY: as above; nothing refers to it.
                unsafe { libc::munmap(first.cast(), size) };
            }
            Err(errno) => break errno,
        }
    };
    // The node may have less.
    match (last, bytes) {
        (Errno::ENOMEM, PCI_BLOCK_MAX..=PCI_MEMORY_MAX) => Ok(()),
        found => Err(ProbeError::Wrong(format!("memory: {found:?}"))),
    }
}

/// Children claim the function, make random calls with arguments that could be right, and are killed.
fn ends_at_random(address: u64, kills: u64) -> Result<(), ProbeError> {
    let mut rng = fastrand::Rng::with_seed(kills);
    for _ in 0..kills {
        // SAFETY: this program has one thread.
        match unsafe { fork() }.named("fork")? {
            ForkResult::Child => call_for_ever(address, rng.fork()),
            ForkResult::Parent { child } => {
                std::thread::sleep(Duration::from_millis(rng.u64(0..400)));
                kill(child, Signal::SIGKILL).named("kill")?;
                waitpid(child, None).named("waiting for a child")?;
            }
        }
    }
    make(SYS_PCI_CLAIM, [address, 0, 0, 0]).named("claim after all")?;
    Ok(())
}

fn call_for_ever(address: u64, mut rng: fastrand::Rng) -> ! {
    let mut memory = [PciMemory::default(); 8];
    let at = memory.as_mut_ptr().expose_provenance() as u64;
    loop {
        memory[0].size = rng.u64(0..8) * PAGE;
        let number = CALLS[rng.usize(..CALLS.len())];
        let second = match number {
            SYS_PCI_ALLOCATE => at + 8 * rng.u64(0..2),
            _ => rng.u64(0..4),
        };
        let words = [address, second, PAGE * rng.u64(0..3), PAGE * rng.u64(0..4)];
        let _ = make(number, words);
    }
}
