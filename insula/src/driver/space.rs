//! The address space of a program on a node of the lightweight kernel, and this process becoming
//! the program's proxy in it.

#![allow(
    unsafe_code,
    reason = "the process gives up its address space for the blob's"
)]

use std::arch::{asm, global_asm};
use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use insula_abi::ioctl as numbers;
use insula_abi::lwk::{
    DESKS_PER_PAGE, Desk, PAGE_SIZE, PAGES_MAX, SPACE_DESKS, SPACE_INTERRUPT, SpaceBegin,
};
use insula_proxy::{BLOB_SIZE, Parameters, STACK_SIZE, Step, Text, blob};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{self, c_long};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use nix::sys::resource::{Resource, getrlimit};
use zerocopy::IntoBytes;

/// The program's part of the address space begins here: no process has anything below
/// (`vm.mmap_min_addr`).
const LOWEST: u64 = 0x1_0000;
/// The address space of a process ends here (`TASK_SIZE` with page tables of four levels).
const HIGHEST: u64 = 0x7fff_ffff_f000;
/// Of all desks that an area can have.
const DESKS_SIZE: u64 = PAGES_MAX as u64 * PAGE_SIZE;
const STACKS_SIZE: u64 = PAGES_MAX as u64 * DESKS_PER_PAGE as u64 * STACK_SIZE as u64;

/// Why this process did not become a proxy. It is what it was.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// There is no room for what a proxy needs.
    #[error("memory for the proxy: {}", .0.desc())]
    Region(Errno),
    /// The space could not be moved out of the program's way.
    #[error("the proxy's descriptor: {}", .0.desc())]
    Descriptor(Errno),
    /// The C library's per-processor area could not be taken away.
    #[error("leaving the C library: {}", .0.desc())]
    Rseq(Errno),
    /// A handler could not be set.
    #[error("catching signal {signal}: {}", .errno.desc())]
    Handler {
        /// For which.
        signal: i32,
        /// Why.
        errno: Errno,
    },
    /// What signals are blocked could not be changed.
    #[error("unblocking signals: {}", .0.desc())]
    Mask(Errno),
}

/// What a proxy begins with.
#[derive(Debug)]
pub struct ProxyStart<'a> {
    /// What the program's kernel is given when it asks for arguments.
    pub arguments: &'a [u8],
    /// The program's file, by which the process is to be known, if it can be.
    pub executable: Option<OwnedFd>,
    /// How often a turn is looked for before sleeping.
    pub polls: u64,
}

/// Where a proxy will be: a part of this process's address space, reserved.
#[derive(Debug)]
pub struct ProxyRegion {
    start: NonNull<u8>,
    size: NonZeroUsize,
    data_size: usize,
}

impl ProxyRegion {
    /// Reserves one for a proxy with that many bytes of arguments.
    ///
    /// # Errors
    /// What the kernel answered.
    pub fn reserve(arguments_size: usize) -> Result<Self, ProxyError> {
        let data_size = data_size(arguments_size);
        let size = (BLOB_SIZE + data_size) as u64 + DESKS_SIZE + STACKS_SIZE;
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

    fn desks(&self) -> u64 {
        self.data() + self.data_size as u64
    }

    fn stacks(&self) -> u64 {
        self.desks() + DESKS_SIZE
    }

    /// What is left for the program.
    #[must_use]
    pub fn program(&self) -> Range<u64> {
        LOWEST..self.address()
    }
}

impl Drop for ProxyRegion {
    fn drop(&mut self) {
        // SAFETY: the region is this value's, and no reference into it is kept.
        let _ = unsafe { munmap(self.start.cast(), self.size.get()) };
    }
}

/// A program's address space, whose proxy this process is to be.
#[derive(Debug)]
pub struct Space {
    fd: OwnedFd,
    desk: u32,
}

impl Space {
    pub(super) fn new(fd: OwnedFd, desk: u32) -> Self {
        Self { fd, desk }
    }

    /// Becomes the proxy: nothing of this program is left, the process and its descriptors are.
    /// It must have one thread only. `region` is the one for whose program the space was made.
    ///
    /// # Errors
    /// [`ProxyError`]; the program does not begin then.
    pub fn become_proxy(
        self,
        region: ProxyRegion,
        start: ProxyStart<'_>,
    ) -> Result<Infallible, ProxyError> {
        let fd = out_of_the_way(self.fd)?;
        map_desks(&region, fd.as_fd())?;
        let signals = Inherited::by_this_process()?;
        let data = Data::new(&region, (fd.as_raw_fd(), self.desk), &start, signals);
        // SAFETY: both go to parts of the region, which is this process's alone and large enough:
        // `data_size` was made for these arguments. No reference to it is kept.
        unsafe {
            copy_to(region.address(), blob().bytes);
            copy_to(region.data(), &data.bytes(&region));
        }
        protect(&region)?;
        leave_library()?;
        catch_signals(&region, signals)?;
        let (entry, desk) = (region.address(), u64::from(self.desk));
        // They are the proxy's from here on.
        std::mem::forget((region, fd, start.executable));
        // SAFETY: the blob is there and executable. It expects its desk in RDI and a stack that has
        // room for an address, and never returns: so nothing that Rust believes of this program's
        // memory is looked at any more.
        unsafe { asm!("jmp {entry}", entry = in(reg) entry, in("rdi") desk, options(noreturn)) }
    }
}

/// The descriptor moved to the highest number, where programs put none.
fn out_of_the_way(fd: OwnedFd) -> Result<OwnedFd, ProxyError> {
    use std::os::fd::FromRawFd;
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).map_err(ProxyError::Descriptor)?;
    let last = i32::try_from(soft.saturating_sub(1)).unwrap_or(i32::MAX);
    let raw = fcntl(&fd, FcntlArg::F_DUPFD_CLOEXEC(last)).map_err(ProxyError::Descriptor)?;
    // SAFETY: the kernel has just made this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

fn map_desks(region: &ProxyRegion, fd: BorrowedFd<'_>) -> Result<(), ProxyError> {
    let address = usize::try_from(region.desks())
        .ok()
        .and_then(NonZeroUsize::new);
    let size = usize::try_from(DESKS_SIZE).ok().and_then(NonZeroUsize::new);
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
            SPACE_DESKS.cast_signed(),
        )
    };
    mapped.map(drop).map_err(ProxyError::Region)
}

/// The blob is executed, never written.
fn protect(region: &ProxyRegion) -> Result<(), ProxyError> {
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
    // SAFETY: the first page of the region, to which there is no reference.
    unsafe { nix::sys::mman::mprotect(region.start.cast(), BLOB_SIZE, protection) }
        .map_err(ProxyError::Region)
}

/// # Safety
/// `bytes.len()` bytes at `address` are writable and nobody else's.
unsafe fn copy_to(address: u64, bytes: &[u8]) {
    let to = address as usize as *mut u8;
    // SAFETY: the caller's promise; a slice of this program does not overlap them.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

const NODE_GONE: &str = "insula: the program's node has ended, and the program with it\n";
const NO_SPACE: &str =
    "insula: the program's address space could not be mapped; it was not begun\n";
const NOT_BEGUN: &str = "insula: the node ended before the program began\n";
const NO_COPY: &str = "insula: a copy of the program could not be begun\n";
/// System calls before the program begins, and before a copy of it does.
const STEPS: usize = 7;
const COPY_STEPS: usize = 4;
const STEPS_SIZE: usize = STEPS * size_of::<Step>();
const COPY_STEPS_SIZE: usize = COPY_STEPS * size_of::<Step>();
const TEXTS: [&str; 4] = [NODE_GONE, NO_SPACE, NOT_BEGUN, NO_COPY];
const TEXTS_SIZE: usize = NODE_GONE.len() + NO_SPACE.len() + NOT_BEGUN.len() + NO_COPY.len();

/// Bytes behind the blob, whole pages.
fn data_size(arguments_size: usize) -> usize {
    let steps = STEPS_SIZE + COPY_STEPS_SIZE;
    let bytes = size_of::<Parameters>() + size_of::<SpaceBegin>() + steps + TEXTS_SIZE;
    (bytes + arguments_size).next_multiple_of(PAGE_SIZE as usize)
}

/// What lies behind the blob: parameters, the structure of a call, steps, texts, arguments.
struct Data<'a> {
    parameters: Parameters,
    begin: SpaceBegin,
    steps: [Step; STEPS],
    copy_steps: [Step; COPY_STEPS],
    arguments: &'a [u8],
}

impl<'a> Data<'a> {
    fn new(
        region: &ProxyRegion,
        (fd, desk): (i32, u32),
        start: &ProxyStart<'a>,
        signals: Inherited,
    ) -> Self {
        let begin = region.data() + size_of::<Parameters>() as u64;
        let steps = begin + size_of::<SpaceBegin>() as u64;
        let steps_end = steps + STEPS_SIZE as u64;
        let copy_steps_end = steps_end + COPY_STEPS_SIZE as u64;
        let mut at = copy_steps_end;
        let [node_gone, no_space, not_begun, no_copy] = TEXTS.map(|text| {
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
        let steps_made = [
            step(libc::SYS_munmap, &[0, region.address()], no_space),
            step(
                libc::SYS_munmap,
                &[region.end(), HIGHEST - region.end()],
                no_space,
            ),
            map_program(region, fd, no_space),
            // Neither is needed: who may not do it is known by another name.
            step(libc::SYS_prctl, &set_executable, Text::default()),
            step(libc::SYS_close, &[executable], Text::default()),
            step(
                libc::SYS_ioctl,
                &[fd, numbers::SPACE_SIT.into(), desk.into()],
                not_begun,
            ),
            step(
                libc::SYS_ioctl,
                &[fd, numbers::SPACE_BEGIN.into(), begin],
                not_begun,
            ),
        ];
        let copy_steps = [
            step(libc::SYS_ioctl, &[fd, numbers::SPACE_ADOPT.into()], no_copy),
            map_at(region.desks(), DESKS_SIZE, fd, SPACE_DESKS, no_copy),
            map_program(region, fd, no_copy),
            step(
                libc::SYS_ioctl,
                &[fd, numbers::SPACE_BEGIN.into(), begin],
                no_copy,
            ),
        ];
        Self {
            parameters: Parameters {
                space: fd,
                desks: region.desks(),
                desks_end: region.desks() + DESKS_SIZE,
                stacks: region.stacks(),
                polls: start.polls,
                steps,
                steps_end,
                copy_steps: steps_end,
                copy_steps_end,
                arguments,
                node_gone,
                all_signals: u64::MAX,
                ..Parameters::default()
            },
            begin: SpaceBegin {
                arguments_size: arguments.size,
                descriptor: fd,
                desks: region.desks(),
                ignored: signals.ignored,
                blocked: signals.blocked,
            },
            steps: steps_made,
            copy_steps,
            arguments: start.arguments,
        }
    }

    fn bytes(&self, region: &ProxyRegion) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(region.data_size);
        bytes.extend_from_slice(self.parameters.as_bytes());
        bytes.extend_from_slice(self.begin.as_bytes());
        bytes.extend_from_slice(self.steps.as_bytes());
        bytes.extend_from_slice(self.copy_steps.as_bytes());
        TEXTS
            .iter()
            .for_each(|text| bytes.extend_from_slice(text.as_bytes()));
        bytes.extend_from_slice(self.arguments);
        debug_assert!(bytes.len() <= region.data_size);
        bytes
    }
}

/// Shows the program's part of the address space.
fn map_program(region: &ProxyRegion, fd: u64, complaint: Text) -> Step {
    let program = region.program();
    let size = program.end - program.start;
    map_at(program.start, size, fd, program.start, complaint)
}

fn map_at(start: u64, size: u64, fd: u64, offset: u64, complaint: Text) -> Step {
    let writable = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let shared = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
    let arguments = [start, size, writable, shared, fd, offset];
    step(libc::SYS_mmap, &arguments, complaint)
}

fn step(number: c_long, arguments: &[u64], complaint: Text) -> Step {
    let mut all = [0; 6];
    all.iter_mut()
        .zip(arguments)
        .for_each(|(to, from)| *to = *from);
    Step {
        number: number.cast_unsigned(),
        arguments: all,
        complaint,
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

/// Where the C library has this thread's area for restartable sequences, if it has one.
fn rseq_area() -> Option<usize> {
    // SAFETY: the assembly above defines it, and the loader alone writes it.
    let [offset, size] = unsafe { insula_rseq };
    if offset == 0 || size == 0 {
        return None;
    }
    let thread: usize;
    // SAFETY: 1. They are the addresses of a ptrdiff_t and an unsigned int that never change. 2. The
    // first word of the thread control block is its own address (System V ABI for x86-64).
    unsafe {
        asm!("mov {}, fs:[0]", out(reg) thread, options(nostack, readonly, preserves_flags));
        let (offset, size) = (*(offset as *const isize), *(size as *const u32));
        (size != 0).then(|| thread.wrapping_add_signed(offset))
    }
}

/// Tells the kernel to forget what the C library has in memory that will be gone: it writes to the
/// area for restartable sequences whenever it moves the thread.
fn leave_library() -> Result<(), ProxyError> {
    /// `RSEQ_SIG` of x86, with which the C library registers.
    const SIGNATURE: c_long = 0x5305_3053;
    /// Size of the area as the C library registers it.
    const AREA_SIZE: c_long = 32;
    const UNREGISTER: c_long = 1;
    if let Some(area) = rseq_area() {
        // SAFETY: unregistering only makes the kernel write there no more.
        let answer =
            unsafe { libc::syscall(libc::SYS_rseq, area, AREA_SIZE, UNREGISTER, SIGNATURE) };
        Errno::result(answer).map_err(ProxyError::Rseq)?;
    }
    // SAFETY: both only make the kernel forget addresses.
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

/// What cannot be caught.
const NOT_CAUGHT: [i32; 2] = [libc::SIGKILL, libc::SIGSTOP];
/// Those by which a terminal stops who uses it from the background. It looks itself who ignores them:
/// so the proxy does, if the program does.
const OF_BACKGROUND: [i32; 2] = [libc::SIGTTIN, libc::SIGTTOU];

/// The bit of a signal in a set.
fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// What this process does about signals, which the program begins with.
#[derive(Clone, Copy, Debug)]
struct Inherited {
    /// Bit number - 1 of each that is ignored.
    ignored: u64,
    /// The same of those that are blocked.
    blocked: u64,
}

impl Inherited {
    fn by_this_process() -> Result<Self, ProxyError> {
        let mut ignored = 0;
        // Rust's library ignores SIGPIPE, in its own way and for itself; whoever began this process by
        // posix_spawn(3) of glibc has had it ignore those that are the C library's own.
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

/// Has the kernel change what this thread blocks; tells what that was.
fn change_mask(how: i32, set: u64, before: &mut u64) -> Result<(), ProxyError> {
    let size = size_of::<u64>();
    // SAFETY: both are sets of the kernel's.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            how,
            &raw const set,
            &raw mut *before,
            size,
        )
    };
    Errno::result(answer).map(drop).map_err(ProxyError::Mask)
}

/// All signals go to the blob, also those that are ignored or blocked: the program may wish otherwise
/// later, and its kernel knows what becomes of each. One that stays ignored it has caught when it wishes.
fn catch_signals(region: &ProxyRegion, inherited: Inherited) -> Result<(), ProxyError> {
    const SA_RESTORER: u64 = 0x0400_0000;
    let blob = blob();
    for signal in (1..=64).filter(|signal| !NOT_CAUGHT.contains(signal)) {
        let failed = |errno| ProxyError::Handler { signal, errno };
        let is_ignored = inherited.ignored & bit(signal) != 0;
        if is_ignored && OF_BACKGROUND.contains(&signal) {
            continue;
        }
        // A call that uses a terminal from the background would begin anew, and be stopped anew, for ever.
        let breaks_off = signal == SPACE_INTERRUPT.cast_signed()
            || signal == libc::SIGTSTP
            || OF_BACKGROUND.contains(&signal);
        let restart = if breaks_off { 0 } else { libc::SA_RESTART };
        // Who ignores it is not told of children by wait(2) either.
        let keeps_none = signal == libc::SIGCHLD && is_ignored;
        let children = if keeps_none { libc::SA_NOCLDWAIT } else { 0 };
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

/// The C library's own would set a restorer of its own, and hides two signals.
fn sigaction(signal: i32, new: *const Action, old: *mut Action) -> Result<(), Errno> {
    let size = size_of::<u64>();
    // SAFETY: both are null or the kernel's structure; a handler is the blob's, which is there.
    let answer = unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, new, old, size) };
    Errno::result(answer).map(drop)
}

/// Where a desk lies in the mapping of the desks.
const _: () = assert!(size_of::<Desk>() as u64 * DESKS_PER_PAGE as u64 == PAGE_SIZE);
