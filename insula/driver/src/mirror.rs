//! The mirror of a program's address space on a node of the lightweight kernel, and this process
//! becoming the program's proxy.

#![allow(
    unsafe_code,
    reason = "the process replaces its address space with the proxy's"
)]

use std::arch::{asm, global_asm};
use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use insula_abi::ioctl as numbers;
use insula_abi::lwk::{
    MIRROR_CANCEL_SIGNAL, MIRROR_SLOTS, MirrorStart, PAGE_SIZE, PAGES_MAX, SLOTS_PER_PAGE,
    SyscallSlot,
};
use insula_proxy::{BLOB_SIZE, Parameters, STACK_SIZE, Step, Text, blob};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{self, c_long};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use nix::sys::resource::{Resource, getrlimit};
use zerocopy::IntoBytes;

/// Start of the program's part of the address space: no process has anything below
/// (`vm.mmap_min_addr`).
const ADDRESS_MIN: u64 = 0x1_0000;
/// End of a process's address space (`TASK_SIZE` with four levels of page tables).
const ADDRESS_END: u64 = 0x7fff_ffff_f000;
/// Size of the mapping of all slots that an area can have.
const SLOTS_SIZE: u64 = PAGES_MAX as u64 * PAGE_SIZE;
const STACKS_SIZE: u64 = PAGES_MAX as u64 * SLOTS_PER_PAGE as u64 * STACK_SIZE as u64;

/// Why this process did not become a proxy. It is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// No address space for the proxy.
    #[error("memory for the proxy: {}", .0.desc())]
    Region(Errno),
    /// The mirror's descriptor could not be moved out of the program's way.
    #[error("the proxy's descriptor: {}", .0.desc())]
    Descriptor(Errno),
    /// The C library's rseq area could not be unregistered.
    #[error("unregistering the C library's rseq area: {}", .0.desc())]
    Rseq(Errno),
    /// A signal handler could not be installed.
    #[error("catching signal {signal}: {}", .errno.desc())]
    Handler {
        /// The signal.
        signal: i32,
        /// The error.
        errno: Errno,
    },
    /// The signal mask could not be changed.
    #[error("unblocking signals: {}", .0.desc())]
    Mask(Errno),
}

/// Parameters of a proxy.
#[derive(Debug)]
pub struct ProxyStart<'a> {
    /// The block that the program's kernel gets when it asks for arguments.
    pub arguments: &'a [u8],
    /// The program's file, as which the process is shown (`/proc/PID/exe`), if that can be set.
    pub executable: Option<OwnedFd>,
    /// Polls of a slot's sequence number before sleeping.
    pub polls: u64,
}

/// The part of this process's address space reserved for a proxy.
#[derive(Debug)]
pub struct ProxyRegion {
    start: NonNull<u8>,
    size: NonZeroUsize,
    data_size: usize,
}

impl ProxyRegion {
    /// Reserves it for a proxy with that many bytes of arguments.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn reserve(arguments_size: usize) -> Result<Self, ProxyError> {
        let data_size = data_size(arguments_size);
        let size = (BLOB_SIZE + data_size) as u64 + SLOTS_SIZE + STACKS_SIZE;
        let size = usize::try_from(size).ok().and_then(NonZeroUsize::new);
        let size = size.ok_or(ProxyError::Region(Errno::ENOMEM))?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice; it replaces nothing.
        let start = unsafe { mmap_anonymous(None, size, protection, flags) };
        Ok(Self {
            start: start.map_err(ProxyError::Region)?.cast(),
            size,
            data_size,
        })
    }

    fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    fn end(&self) -> u64 {
        self.address() + self.size.get() as u64
    }

    fn data(&self) -> u64 {
        self.address() + BLOB_SIZE as u64
    }

    fn slots(&self) -> u64 {
        self.data() + self.data_size as u64
    }

    fn stacks(&self) -> u64 {
        self.slots() + SLOTS_SIZE
    }

    /// The range that is left for the program.
    #[must_use]
    pub fn program(&self) -> Range<u64> {
        ADDRESS_MIN..self.address()
    }
}

impl Drop for ProxyRegion {
    fn drop(&mut self) {
        // SAFETY: the region is this value's, and no reference into it is kept.
        let _ = unsafe { munmap(self.start.cast(), self.size.get()) };
    }
}

/// The mirror of a program's address space, whose proxy this process will be.
#[derive(Debug)]
pub struct Mirror {
    fd: OwnedFd,
    slot: u32,
}

impl Mirror {
    pub(super) fn new(fd: OwnedFd, slot: u32) -> Self {
        Self { fd, slot }
    }

    /// Becomes the proxy: this program's code and memory are gone, the process and its descriptors
    /// remain. The process must be single-threaded. `region` is the one that the mirror was created
    /// for.
    ///
    /// # Errors
    /// [`ProxyError`]; the program is not started then.
    pub fn become_proxy(
        self,
        region: ProxyRegion,
        start: ProxyStart<'_>,
    ) -> Result<Infallible, ProxyError> {
        let fd = move_descriptor(self.fd)?;
        map_slots(&region, fd.as_fd())?;
        let signals = Inherited::from_this_process()?;
        let data = Data::new(&region, (fd.as_raw_fd(), self.slot), &start, signals);
        // SAFETY: both go to parts of the region, which is this process's alone and large enough:
        // `data_size` was computed for these arguments. No reference to it is kept.
        unsafe {
            copy_to(region.address(), blob().bytes);
            copy_to(region.data(), &data.bytes(&region));
        }
        protect(&region)?;
        unregister_library()?;
        catch_signals(&region, signals)?;
        let (entry, slot) = (region.address(), u64::from(self.slot));
        // They belong to the proxy from here on.
        std::mem::forget((region, fd, start.executable));
        // SAFETY: the blob is mapped and executable. It expects its slot in RDI and a stack with
        // room for an address, and never returns: nothing that Rust assumes about this program's
        // memory is used any more.
        unsafe { asm!("jmp {entry}", entry = in(reg) entry, in("rdi") slot, options(noreturn)) }
    }
}

/// Moves the descriptor to the highest number, which programs do not use.
fn move_descriptor(fd: OwnedFd) -> Result<OwnedFd, ProxyError> {
    use std::os::fd::FromRawFd;
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).map_err(ProxyError::Descriptor)?;
    let last = i32::try_from(soft.saturating_sub(1)).unwrap_or(i32::MAX);
    let raw = fcntl(&fd, FcntlArg::F_DUPFD_CLOEXEC(last)).map_err(ProxyError::Descriptor)?;
    // SAFETY: the kernel has just made this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

fn map_slots(region: &ProxyRegion, fd: BorrowedFd<'_>) -> Result<(), ProxyError> {
    let address = usize::try_from(region.slots())
        .ok()
        .and_then(NonZeroUsize::new);
    let size = usize::try_from(SLOTS_SIZE).ok().and_then(NonZeroUsize::new);
    let (address, size) = address.zip(size).ok_or(ProxyError::Region(Errno::ENOMEM))?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
    // SAFETY: it replaces a part of the region, to which there is no reference.
    let mapped = unsafe {
        mmap(
            Some(address),
            size,
            protection,
            flags,
            fd,
            MIRROR_SLOTS.cast_signed(),
        )
    };
    mapped.map(drop).map_err(ProxyError::Region)
}

/// Makes the blob executable and read-only.
fn protect(region: &ProxyRegion) -> Result<(), ProxyError> {
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
    // SAFETY: the first page of the region, to which there is no reference.
    unsafe { nix::sys::mman::mprotect(region.start.cast(), BLOB_SIZE, protection) }
        .map_err(ProxyError::Region)
}

/// # Safety
/// `bytes.len()` bytes at `address` are writable and used by nobody else.
unsafe fn copy_to(address: u64, bytes: &[u8]) {
    let to = address as usize as *mut u8;
    // SAFETY: the caller's promise; a slice of this program does not overlap them.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

const NODE_GONE: &str = "insula: the program's node has stopped, and the program with it\n";
const NO_MIRROR: &str =
    "insula: the program's address space could not be mapped; it was not started\n";
const NOT_STARTED: &str = "insula: the node stopped before the program started\n";
const NO_FORK: &str = "insula: the fork of the program could not be started\n";
/// Number of system calls before the program starts, and before a fork of it does.
const STEPS: usize = 7;
const CHILD_STEPS: usize = 4;
const STEPS_SIZE: usize = STEPS * size_of::<Step>();
const CHILD_STEPS_SIZE: usize = CHILD_STEPS * size_of::<Step>();
const MESSAGES: [&str; 4] = [NODE_GONE, NO_MIRROR, NOT_STARTED, NO_FORK];
const MESSAGES_SIZE: usize = NODE_GONE.len() + NO_MIRROR.len() + NOT_STARTED.len() + NO_FORK.len();

/// Bytes after the blob, in whole pages.
fn data_size(arguments_size: usize) -> usize {
    let steps = STEPS_SIZE + CHILD_STEPS_SIZE;
    let bytes = size_of::<Parameters>() + size_of::<MirrorStart>() + steps + MESSAGES_SIZE;
    (bytes + arguments_size).next_multiple_of(PAGE_SIZE as usize)
}

/// The data after the blob: parameters, the structure of a call, steps, messages, arguments.
struct Data<'a> {
    parameters: Parameters,
    start: MirrorStart,
    steps: [Step; STEPS],
    child_steps: [Step; CHILD_STEPS],
    arguments: &'a [u8],
}

impl<'a> Data<'a> {
    fn new(
        region: &ProxyRegion,
        (fd, slot): (i32, u32),
        start: &ProxyStart<'a>,
        signals: Inherited,
    ) -> Self {
        let mirror_start = region.data() + size_of::<Parameters>() as u64;
        let steps = mirror_start + size_of::<MirrorStart>() as u64;
        let steps_end = steps + STEPS_SIZE as u64;
        let child_steps_end = steps_end + CHILD_STEPS_SIZE as u64;
        let mut at = child_steps_end;
        let [node_gone, no_mirror, not_started, no_fork] = MESSAGES.map(|text| {
            let size = text.len() as u64;
            at += size;
            Text {
                start: at - size,
                size,
            }
        });
        let arguments = Text {
            start: at,
            size: start.arguments.len() as u64,
        };
        let fd = fd as u64;
        let executable = start
            .executable
            .as_ref()
            .map_or(u64::MAX, |fd| fd.as_raw_fd() as u64);
        let set_executable = [
            libc::PR_SET_MM as u64,
            libc::PR_SET_MM_EXE_FILE as u64,
            executable,
        ];
        let start_steps = [
            step(libc::SYS_munmap, &[0, region.address()], no_mirror),
            step(
                libc::SYS_munmap,
                &[region.end(), ADDRESS_END - region.end()],
                no_mirror,
            ),
            map_program(region, fd, no_mirror),
            // Failure of either is ignored: the process is then shown under another name.
            step(libc::SYS_prctl, &set_executable, Text::default()),
            step(libc::SYS_close, &[executable], Text::default()),
            step(
                libc::SYS_ioctl,
                &[fd, numbers::MIRROR_SLOT_ATTACH.into(), slot.into()],
                not_started,
            ),
            step(
                libc::SYS_ioctl,
                &[fd, numbers::MIRROR_START.into(), mirror_start],
                not_started,
            ),
        ];
        let child_steps = [
            step(
                libc::SYS_ioctl,
                &[fd, numbers::MIRROR_ADOPT.into()],
                no_fork,
            ),
            map_at(region.slots(), SLOTS_SIZE, fd, MIRROR_SLOTS, no_fork),
            map_program(region, fd, no_fork),
            step(
                libc::SYS_ioctl,
                &[fd, numbers::MIRROR_START.into(), mirror_start],
                no_fork,
            ),
        ];
        Self {
            parameters: Parameters {
                mirror: fd,
                slots: region.slots(),
                slots_end: region.slots() + SLOTS_SIZE,
                stacks: region.stacks(),
                spins: start.polls,
                steps,
                steps_end,
                child_steps: steps_end,
                child_steps_end,
                arguments,
                node_gone,
                all_signals: u64::MAX,
                ..Parameters::default()
            },
            start: MirrorStart {
                arguments_size: arguments.size,
                descriptor: fd,
                slots: region.slots(),
                ignored: signals.ignored,
                blocked: signals.blocked,
            },
            steps: start_steps,
            child_steps,
            arguments: start.arguments,
        }
    }

    fn bytes(&self, region: &ProxyRegion) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(region.data_size);
        bytes.extend_from_slice(self.parameters.as_bytes());
        bytes.extend_from_slice(self.start.as_bytes());
        bytes.extend_from_slice(self.steps.as_bytes());
        bytes.extend_from_slice(self.child_steps.as_bytes());
        MESSAGES
            .iter()
            .for_each(|text| bytes.extend_from_slice(text.as_bytes()));
        bytes.extend_from_slice(self.arguments);
        debug_assert!(bytes.len() <= region.data_size);
        bytes
    }
}

/// The step that maps the program's part of the address space.
fn map_program(region: &ProxyRegion, fd: u64, error_message: Text) -> Step {
    let program = region.program();
    let size = program.end - program.start;
    map_at(program.start, size, fd, program.start, error_message)
}

fn map_at(start: u64, size: u64, fd: u64, offset: u64, error_message: Text) -> Step {
    let writable = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let shared = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
    let arguments = [start, size, writable, shared, fd, offset];
    step(libc::SYS_mmap, &arguments, error_message)
}

fn step(number: c_long, arguments: &[u64], error_message: Text) -> Step {
    let mut all = [0; 6];
    all.iter_mut()
        .zip(arguments)
        .for_each(|(to, from)| *to = *from);
    Step {
        number: number.cast_unsigned(),
        arguments: all,
        error_message,
    }
}

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
fn unregister_library() -> Result<(), ProxyError> {
    /// `RSEQ_SIG` of x86, with which the C library registers.
    const SIGNATURE: c_long = 0x5305_3053;
    /// Size of the area as the C library registers it.
    const AREA_SIZE: c_long = 32;
    const UNREGISTER: c_long = 1;
    if let Some(area) = rseq_area() {
        // SAFETY: after unregistering, the kernel does not write there any more.
        let result =
            unsafe { libc::syscall(libc::SYS_rseq, area, AREA_SIZE, UNREGISTER, SIGNATURE) };
        Errno::result(result).map_err(ProxyError::Rseq)?;
    }
    // SAFETY: both only clear addresses in the kernel.
    unsafe {
        libc::syscall(libc::SYS_set_robust_list, 0, 3 * size_of::<usize>());
        libc::syscall(libc::SYS_set_tid_address, 0);
    }
    Ok(())
}

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Action {
    handler: u64,
    flags: u64,
    restorer: u64,
    mask: u64,
}

/// Signals that cannot be caught.
const UNCATCHABLE: [i32; 2] = [libc::SIGKILL, libc::SIGSTOP];
/// Signals by which a terminal stops a background process. The terminal checks itself whether they
/// are ignored: so the proxy must ignore them if the program does.
const BACKGROUND_STOPS: [i32; 2] = [libc::SIGTTIN, libc::SIGTTOU];

/// The bit of a signal in a set.
fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Signal dispositions of this process, which the program starts with.
#[derive(Clone, Copy, Debug)]
struct Inherited {
    /// Ignored signals: bit number - 1 of each.
    ignored: u64,
    /// Blocked signals: bit number - 1 of each.
    blocked: u64,
}

impl Inherited {
    fn from_this_process() -> Result<Self, ProxyError> {
        let mut ignored = 0;
        // Rust's runtime ignores SIGPIPE for itself; a parent that used posix_spawn(3) of glibc has
        // made this process ignore the C library's own signals.
        let others = |signal: &i32| !matches!(*signal, libc::SIGPIPE | 32 | 33);
        for signal in (1..=64).filter(others) {
            let failed = |errno| ProxyError::Handler { signal, errno };
            if is_ignored(signal).map_err(failed)? {
                ignored |= bit(signal);
            }
        }
        let mut blocked = 0_u64;
        change_mask(libc::SIG_BLOCK, 0, &mut blocked)?;
        Ok(Self { ignored, blocked })
    }
}

/// Changes this thread's signal mask; stores the previous one.
fn change_mask(how: i32, set: u64, before: &mut u64) -> Result<(), ProxyError> {
    let size = size_of::<u64>();
    // SAFETY: both are signal sets as the kernel defines them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            how,
            &raw const set,
            &raw mut *before,
            size,
        )
    };
    Errno::result(result).map(drop).map_err(ProxyError::Mask)
}

/// Directs all signals to the blob, also those that are ignored or blocked: the program may change
/// that later, and its kernel decides about each. The proxy installs a handler for an ignored one
/// when the program does.
fn catch_signals(region: &ProxyRegion, inherited: Inherited) -> Result<(), ProxyError> {
    const SA_RESTORER: u64 = 0x0400_0000;
    let blob = blob();
    for signal in (1..=64).filter(|signal| !UNCATCHABLE.contains(signal)) {
        let failed = |errno| ProxyError::Handler { signal, errno };
        let is_ignored = inherited.ignored & bit(signal) != 0;
        if is_ignored && BACKGROUND_STOPS.contains(&signal) {
            continue;
        }
        // A restarted call that uses a terminal from the background would be stopped again, for
        // ever.
        let is_not_restarted = signal == MIRROR_CANCEL_SIGNAL.cast_signed()
            || signal == libc::SIGTSTP
            || BACKGROUND_STOPS.contains(&signal);
        let restart = if is_not_restarted {
            0
        } else {
            libc::SA_RESTART
        };
        // With SIGCHLD ignored, wait(2) does not report children.
        let no_child_wait = signal == libc::SIGCHLD && is_ignored;
        let children = if no_child_wait { libc::SA_NOCLDWAIT } else { 0 };
        let action = Action {
            handler: region.address() + blob.handler as u64,
            flags: (libc::SA_SIGINFO | restart | children) as u64 | SA_RESTORER,
            restorer: region.address() + blob.restorer as u64,
            mask: u64::MAX,
        };
        sigaction(signal, &raw const action, std::ptr::null_mut()).map_err(failed)?;
    }
    change_mask(libc::SIG_SETMASK, 0, &mut 0)
}

fn is_ignored(signal: i32) -> Result<bool, Errno> {
    let mut action = Action::default();
    sigaction(signal, std::ptr::null(), &raw mut action)?;
    Ok(action.handler == libc::SIG_IGN as u64)
}

/// `rt_sigaction`: the C library's would set its own restorer, and hides two signals.
fn sigaction(signal: i32, new: *const Action, old: *mut Action) -> Result<(), Errno> {
    let size = size_of::<u64>();
    // SAFETY: both are null or the kernel's structure; the handler is in the blob, which is mapped.
    let result = unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, new, old, size) };
    Errno::result(result).map(drop)
}

/// Slots fill the pages of their mapping.
const _: () = assert!(size_of::<SyscallSlot>() as u64 * SLOTS_PER_PAGE as u64 == PAGE_SIZE);
