//! Moving a program back to the base. Its kernel has its threads wait and writes their state; what memory
//! is the node's is copied to the process; then the process goes on as it did before it was moved.

use std::fs;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use insula_abi::lwk::MIRROR_CANCEL_SIGNAL;
use insula_abi::running::{Action, Range as Part, Running, SIGNALS, Thread, Vma};
use insula_driver::leave;
use nix::errno::Errno;
use nix::libc::{self, c_long, user_regs_struct};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::descriptor;
use crate::failure::{Failure, Obstacle};
use crate::proc::Process;
use crate::ptrace;
use crate::setup::MIRROR;
use crate::state::Scheduling;
use crate::stopped::{NotStopped, Stopped};

/// Size of a page.
const PAGE: u64 = 4096;
/// Most bytes copied at once.
const PIECE: u64 = 4 << 20;
const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
const WRITABLE: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;

/// State of a program that leaves its node.
struct Left {
    head: Running,
    vmas: Vec<Vma>,
    /// With their extended states.
    threads: Vec<(Thread, Vec<u8>)>,
    parts: Vec<Part>,
}

/// Moves a program back. Returns the number of its threads.
pub(crate) fn to_base(process: Process) -> Result<usize, NotStopped> {
    let (mirror, number) = take_mirror(process)?;
    let place = leave::begin(mirror.as_fd()).map_err(|error| match error.errno {
        Errno::EOPNOTSUPP => NotStopped::Obstacle(Obstacle::StartedOnNode),
        errno => NotStopped::Failed(Failure::new("having its threads wait", errno)),
    })?;
    match Returning::new(process, place, number) {
        Ok(returning) => returning.run(mirror),
        Err(failure) => {
            // If that fails its node has stopped, and the program with it.
            let _ = leave::cancel(mirror.as_fd());
            Err(failure)
        }
    }
}

/// Finds the descriptor of a process's mirror, and takes a copy of it.
fn take_mirror(process: Process) -> Result<(OwnedFd, u64), NotStopped> {
    let failed = || Failure::of("finding its mirror");
    let folder = format!("/proc/{}/fd", process.pid);
    let mut found = None;
    for entry in fs::read_dir(folder).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        let target = fs::read_link(entry.path()).unwrap_or_default();
        if target.to_string_lossy().contains(MIRROR) {
            found = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<u64>().ok());
        }
    }
    let number = found.ok_or(Obstacle::NotOnNode)?;
    Ok((descriptor::take(process.pid, number)?, number))
}

/// A process whose program waits to return to it.
struct Returning {
    stopped: Stopped,
    left: Left,
    /// Number of the mirror's descriptor there.
    mirror: u64,
    /// Memory of the process for arguments of calls.
    scratch: u64,
}

impl Returning {
    fn new(process: Process, (at, size): (u64, u64), mirror: u64) -> Result<Self, NotStopped> {
        let mut bytes = vec![0; size as usize];
        process.memory()?.read(at, &mut bytes)?;
        let left = Left::parse(&bytes)
            .ok_or_else(|| Failure::invalid("reading its state", "it is malformed"))?;
        let mut stopped = Stopped::stop(process)?;
        order_threads(&mut stopped, &left)?;
        // The stack of its proxy's loop, which is at its end.
        let scratch = (stopped.threads[0].registers.rsp - PAGE) & !(PAGE - 1);
        Ok(Self {
            stopped,
            left,
            mirror,
            scratch,
        })
    }

    /// Has the process go on. If that fails it is killed: it is no program of the node any more.
    fn run(mut self, mirror: OwnedFd) -> Result<usize, NotStopped> {
        let pid = Pid::from_raw(self.stopped.process.pid);
        let done = self.restore();
        // The node's kernel ends the program when nobody has the mirror any more.
        drop(mirror);
        if let Err(failure) = done.and_then(|()| self.discard_cancellation()) {
            // It fails only if the process has ended.
            let _ = kill(pid, Signal::SIGKILL);
            return Err(NotStopped::Lost(failure));
        }
        let pending = self.left.head.signals_of_fds;
        let count = self.left.threads.len();
        self.schedule();
        self.release();
        let is_pending = |signal: &i32| pending >> (signal - 1) & 1 != 0;
        for signal in (1..=SIGNALS as i32).filter(is_pending) {
            // It fails only if the process has ended.
            if let Ok(signal) = Signal::try_from(signal) {
                let _ = kill(pid, signal);
            }
        }
        Ok(count)
    }

    /// Has its threads scheduled as on the node. Without the right to do that, they are as they were
    /// when the program was moved there.
    fn schedule(&self) {
        for (thread, (state, _)) in self.stopped.threads.iter().zip(&self.left.threads) {
            thread.schedule(Scheduling {
                nice: state.nice,
                policy: state.policy,
                priority: state.priority,
            });
        }
    }

    fn restore(&mut self) -> Result<(), Failure> {
        for thread in &self.stopped.threads {
            thread.block_signals()?;
        }
        let contents = self.read_contents()?;
        let grown = self.move_heap_end()?;
        for index in 0..self.left.vmas.len() {
            self.map(self.left.vmas[index], &grown)?;
        }
        for (start, bytes) in contents {
            self.stopped.memory.write(start, &bytes)?;
        }
        for index in 0..self.left.vmas.len() {
            self.protect(self.left.vmas[index])?;
        }
        self.set_actions()?;
        for thread in 0..self.left.threads.len() {
            self.register(thread)?;
        }
        self.remove_proxy()
    }

    fn call(
        &mut self,
        what: &str,
        thread: usize,
        number: c_long,
        arguments: &[u64],
    ) -> Result<u64, Failure> {
        let result = self.stopped.call(thread, number, arguments);
        result.map_err(Failure::of(what))
    }

    /// Reads the memory that is the node's.
    fn read_contents(&self) -> Result<Vec<(u64, Vec<u8>)>, Failure> {
        let mut contents = Vec::new();
        for &Part { start, end } in &self.left.parts {
            let mut next = start;
            while next < end {
                let size = PIECE.min(end - next);
                let mut bytes = vec![0; size as usize];
                self.stopped.memory.read(next, &mut bytes)?;
                contents.push((next, bytes));
                next += size;
            }
        }
        Ok(contents)
    }

    /// Moves the end of the heap to where the program has it. What is beyond the present one is the
    /// mirror's until then, and so is the page after it, which brk(2) wants to be free. Returns what brk(2) has mapped.
    fn move_heap_end(&mut self) -> Result<Range<u64>, Failure> {
        let what = "moving the end of its heap";
        let old = self.call(what, 0, libc::SYS_brk, &[0])?;
        let new = self.left.head.heap_end;
        let (from, to) = (old.next_multiple_of(PAGE), new.next_multiple_of(PAGE));
        if from < to {
            self.call(what, 0, libc::SYS_munmap, &[from, to + PAGE - from])?;
        }
        match self.call(what, 0, libc::SYS_brk, &[new])? == new {
            true => Ok(from..to.max(from)),
            false => Err(Failure::new(what, Errno::ENOMEM)),
        }
    }

    /// Maps memory in place of the mirror, but for what brk(2) has mapped.
    fn map(&mut self, vma: Vma, grown: &Range<u64>) -> Result<(), Failure> {
        let stack = self
            .stopped
            .mappings
            .iter()
            .find(|one| one.name == "[stack]");
        let is_stack = stack.is_some_and(|stack| stack.vma.start == vma.end);
        let grows = if is_stack { libc::MAP_GROWSDOWN } else { 0 };
        let flags = ANONYMOUS | libc::MAP_FIXED | grows;
        for part in outside(vma, grown) {
            let size = part.end - part.start;
            let arguments = [part.start, size, WRITABLE, flags as u64, u64::MAX, 0];
            self.call("mapping its memory", 0, libc::SYS_mmap, &arguments)?;
        }
        Ok(())
    }

    /// Sets the protection of what has been mapped, and its advice.
    fn protect(&mut self, vma: Vma) -> Result<(), Failure> {
        let range = [vma.start, vma.end - vma.start];
        let protection = u64::from(vma.protection);
        if protection != WRITABLE {
            let arguments = [range[0], range[1], protection];
            self.call("protecting its memory", 0, libc::SYS_mprotect, &arguments)?;
        }
        for (flag, advice) in [
            (insula_abi::running::DONT_FORK, libc::MADV_DONTFORK),
            (insula_abi::running::WIPE_ON_FORK, libc::MADV_WIPEONFORK),
            (insula_abi::running::DONT_DUMP, libc::MADV_DONTDUMP),
        ] {
            if vma.flags & flag != 0 {
                let arguments = [range[0], range[1], advice as u64];
                self.call("advising on its memory", 0, libc::SYS_madvise, &arguments)?;
            }
        }
        Ok(())
    }

    fn set_actions(&mut self) -> Result<(), Failure> {
        for index in 0..SIGNALS {
            let signal = index as i32 + 1;
            if [libc::SIGKILL, libc::SIGSTOP].contains(&signal) {
                continue;
            }
            let action: Action = self.left.head.actions[index];
            self.stopped.memory.write(self.scratch, action.as_bytes())?;
            let arguments = [signal as u64, self.scratch, 0, 8];
            self.call(
                "restoring its signals",
                0,
                libc::SYS_rt_sigaction,
                &arguments,
            )?;
        }
        Ok(())
    }

    /// Discards signals by which the module has cancelled calls and that were not taken, as its doorbell rang late: they would
    /// end the program. Nobody has the mirror any more, so no other is sent.
    fn discard_cancellation(&mut self) -> Result<(), Failure> {
        let what = "restoring its signals";
        let page = [0, PAGE, WRITABLE, ANONYMOUS as u64, u64::MAX, 0];
        let page = self.call(what, 0, libc::SYS_mmap, &page)?;
        let ignored = Action {
            handler: libc::SIG_IGN as u64,
            ..Action::new_zeroed()
        };
        let own = self.left.head.actions[MIRROR_CANCEL_SIGNAL as usize - 1];
        for action in [ignored, own] {
            self.stopped.memory.write(page, action.as_bytes())?;
            let arguments = [MIRROR_CANCEL_SIGNAL.into(), page, 0, 8];
            self.call(what, 0, libc::SYS_rt_sigaction, &arguments)?;
        }
        self.call(what, 0, libc::SYS_munmap, &[page, PAGE])
            .map(drop)
    }

    /// Registers what the base knows of a thread.
    fn register(&mut self, index: usize) -> Result<(), Failure> {
        let state = self.left.threads[index].0;
        let what = "restoring its threads";
        let word = [state.clear_child_tid];
        self.call(what, index, libc::SYS_set_tid_address, &word)?;
        let list = [state.robust_list, 24];
        self.call(what, index, libc::SYS_set_robust_list, &list)?;
        if state.rseq != 0 {
            let area = [
                state.rseq,
                state.rseq_size.into(),
                0,
                state.rseq_signature.into(),
            ];
            self.call(what, index, libc::SYS_rseq, &area)?;
        }
        let stack = [state.stack_start, state.stack_flags, state.stack_size];
        self.stopped.memory.write(self.scratch, stack.as_bytes())?;
        self.call(what, index, libc::SYS_sigaltstack, &[self.scratch, 0])
            .map(drop)
    }

    /// Unmaps the mirror and all that was the proxy's.
    fn remove_proxy(&mut self) -> Result<(), Failure> {
        let what = "removing its proxy";
        let Running {
            region_start,
            region_end,
            ..
        } = self.left.head;
        for mapping in self.stopped.process.mappings()? {
            let vma = mapping.vma;
            if mapping.name.contains(MIRROR) && !(region_start..region_end).contains(&vma.start) {
                self.call(what, 0, libc::SYS_munmap, &[vma.start, vma.end - vma.start])?;
            }
        }
        self.call(what, 0, libc::SYS_close, &[self.mirror])?;
        let region = [region_start, region_end - region_start];
        self.call(what, 0, libc::SYS_munmap, &region).map(drop)
    }

    /// Lets all threads go on.
    fn release(self) {
        let states = self.left.threads.into_iter();
        for (thread, (state, extended)) in self.stopped.threads.into_iter().zip(states) {
            let registers = registers(&state, &thread.registers);
            // It fails only if it has been killed.
            let _ = thread.set_extended(&extended);
            let _ = thread.release_with(registers, state.blocked);
        }
    }
}

/// Brings the threads into the order of their states.
fn order_threads(stopped: &mut Stopped, left: &Left) -> Result<(), NotStopped> {
    let mut ids = Vec::new();
    for thread in &stopped.threads {
        let status = stopped.process.thread_status(thread.id())?;
        ids.push((status.id_in_namespace(), thread.id()));
    }
    let place = |id: i32| {
        let (own, _) = ids.iter().find(|(_, other)| *other == id)?;
        left.threads
            .iter()
            .position(|(state, _)| Some(state.id) == *own)
    };
    let are_same = stopped.threads.len() == left.threads.len()
        && stopped
            .threads
            .iter()
            .all(|thread| place(thread.id()).is_some());
    if !are_same {
        return Err(Failure::invalid("finding its threads", "others have come or gone").into());
    }
    stopped.threads.sort_by_key(|thread| place(thread.id()));
    Ok(())
}

impl Left {
    /// Decodes it; `None` if it is malformed.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = Running::read_from_prefix(bytes).ok()?;
        let (vmas, rest) = take::<Vma>(rest, head.vmas)?;
        let (states, mut rest) = take::<Thread>(rest, head.threads)?;
        let mut threads = Vec::new();
        for state in states {
            let (extended, next) = rest.split_at_checked(head.extended_size as usize)?;
            threads.push((state, extended.to_vec()));
            rest = next;
        }
        let (parts, rest) = take::<Part>(rest, (rest.len() / size_of::<Part>()) as u32)?;
        let is_whole = rest.is_empty() && head.timers == 0 && !threads.is_empty();
        is_whole.then_some(Self {
            head,
            vmas,
            threads,
            parts,
        })
    }
}

/// The parts of a mapping that are not in a range.
fn outside(vma: Vma, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let parts = [
        vma.start..vma.end.min(range.start),
        vma.start.max(range.end)..vma.end,
    ];
    let own = move |part: &Range<u64>| part.start < part.end;
    parts.into_iter().filter(own)
}

/// Takes elements off the front of bytes.
fn take<T: FromBytes + KnownLayout + Immutable>(
    bytes: &[u8],
    count: u32,
) -> Option<(Vec<T>, &[u8])> {
    let size = size_of::<T>().checked_mul(count as usize)?;
    let (taken, rest) = bytes.split_at_checked(size)?;
    let elements = taken.chunks_exact(size_of::<T>());
    let elements = elements.filter_map(|bytes| T::read_from_bytes(bytes).ok());
    Some((elements.collect(), rest))
}

fn registers(state: &Thread, present: &user_regs_struct) -> user_regs_struct {
    user_regs_struct {
        rax: state.rax,
        rbx: state.rbx,
        rcx: state.rcx,
        rdx: state.rdx,
        rsi: state.rsi,
        rdi: state.rdi,
        rbp: state.rbp,
        rsp: state.rsp,
        r8: state.r8,
        r9: state.r9,
        r10: state.r10,
        r11: state.r11,
        r12: state.r12,
        r13: state.r13,
        r14: state.r14,
        r15: state.r15,
        rip: state.rip,
        eflags: state.rflags,
        fs_base: state.fs_base,
        gs_base: state.gs_base,
        orig_rax: u64::MAX,
        cs: present.cs,
        ss: present.ss,
        ..ptrace::no_registers()
    }
}
