//! Setting up the proxy in a stopped process, by system calls of its own. Until its new kernel is told to
//! start it, everything can be undone.

use std::os::fd::{AsFd, OwnedFd};

use insula_abi::ioctl;
use insula_abi::running::{Action, SIGNALS};
use insula_driver::OtherProxy;
use nix::errno::Errno;
use nix::libc::{self, c_long, user_regs_struct};
use zerocopy::IntoBytes;

use crate::descriptor;
use crate::failure::Failure;
use crate::place;
use crate::ptrace::{self, RseqConfiguration, Tracee};
use crate::restart;
use crate::state::{ProcessState, ThreadState};
use crate::stopped::Stopped;

/// Size of a signal set.
const SET_SIZE: u64 = 8;
/// Name of a mirror among a process's mappings.
pub(crate) const MIRROR: &str = "[insula-mirror]";

/// Something that was done in the process.
#[derive(Clone, Copy, Debug)]
enum Done {
    Region,
    MirrorMapped,
    Opened(u64),
    Caught(i32),
    Rseq(usize),
    TidAddress(usize),
}

/// A process in which the proxy is being set up.
pub(crate) struct Setup<'a> {
    stopped: &'a mut Stopped,
    pub(crate) proxy: OtherProxy,
    /// Memory of the process for arguments of calls.
    scratch: u64,
    state: ProcessState,
    pub(crate) threads: Vec<ThreadState>,
    done: Vec<Done>,
}

impl<'a> Setup<'a> {
    /// Prepares it: nothing is changed yet. The slots of `threads` but the first are not known.
    pub(crate) fn new(
        stopped: &'a mut Stopped,
        proxy: OtherProxy,
        state: ProcessState,
        threads: Vec<ThreadState>,
    ) -> Self {
        let scratch = proxy.stack(threads[0].slot).start;
        Self {
            stopped,
            proxy,
            scratch,
            state,
            threads,
            done: Vec::new(),
        }
    }

    /// Sets the proxy up and has the process's new kernel start it. On failure the process is as it was.
    pub(crate) fn run(&mut self, mirror: &OwnedFd, polls: u64) -> Result<(), Failure> {
        let started = self.set_up(mirror, polls);
        if started.is_err() {
            self.undo();
        }
        started
    }

    fn set_up(&mut self, mirror: &OwnedFd, polls: u64) -> Result<(), Failure> {
        for thread in &self.stopped.threads {
            thread.block_signals()?;
        }
        self.map_region()?;
        self.read_state()?;
        self.pass_mirror(mirror)?;
        self.attach_threads()?;
        self.write_contents(polls)?;
        self.map_holes()?;
        self.catch_signals()?;
        self.forget_program()?;
        self.start()
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

    fn ioctl(
        &mut self,
        what: &str,
        thread: usize,
        call: u32,
        argument: u64,
    ) -> Result<u64, Failure> {
        let arguments = [self.proxy.descriptor, call.into(), argument];
        self.call(what, thread, libc::SYS_ioctl, &arguments)
    }

    fn protect(&mut self, (start, end): (u64, u64), protection: i32) -> Result<(), Failure> {
        let arguments = [start, end - start, protection as u64];
        self.call("mapping its proxy", 0, libc::SYS_mprotect, &arguments)
            .map(drop)
    }

    fn make_writable(&mut self, range: std::ops::Range<u64>) -> Result<(), Failure> {
        self.protect((range.start, range.end), libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Reserves the proxy's addresses, and makes the scratch memory accessible.
    fn map_region(&mut self) -> Result<(), Failure> {
        let region = self.proxy.region;
        let flags = libc::MAP_PRIVATE
            | libc::MAP_ANONYMOUS
            | libc::MAP_NORESERVE
            | libc::MAP_FIXED_NOREPLACE;
        let arguments = [
            region.address(),
            region.size(),
            0,
            flags as u64,
            u64::MAX,
            0,
        ];
        self.call("mapping its proxy", 0, libc::SYS_mmap, &arguments)?;
        self.done.push(Done::Region);
        let stack = self.proxy.stack(self.threads[0].slot);
        self.make_writable(stack)
    }

    /// Reads what only the process itself is told.
    fn read_state(&mut self) -> Result<(), Failure> {
        const GET_TID_ADDRESS: u64 = 40;
        let at = self.scratch;
        self.state.heap.1 = self.call("reading its heap", 0, libc::SYS_brk, &[0])?;
        for thread in 0..self.threads.len() {
            let what = "reading its signal stack";
            self.call(what, thread, libc::SYS_sigaltstack, &[0, at])?;
            let [start, flags, size] = self.stopped.memory.words(at)?;
            self.threads[thread].stack = [start, flags & u64::from(u32::MAX), size];
            let arguments = [GET_TID_ADDRESS, at];
            self.call(
                "reading its thread's word",
                thread,
                libc::SYS_prctl,
                &arguments,
            )?;
            [self.threads[thread].clear_child_tid] = self.stopped.memory.words(at)?;
        }
        for index in 0..SIGNALS {
            let arguments = [index as u64 + 1, 0, at, SET_SIZE];
            self.call("reading its signals", 0, libc::SYS_rt_sigaction, &arguments)?;
            let [handler, flags, restorer, mask] = self.stopped.memory.words(at)?;
            self.state.actions[index] = Action {
                handler,
                flags,
                restorer,
                mask,
            };
        }
        Ok(())
    }

    /// Gives the process the mirror's descriptor, moves it out of the way, and maps the slots.
    fn pass_mirror(&mut self, mirror: &OwnedFd) -> Result<(), Failure> {
        let pid = self.stopped.process.pid;
        let (stopped, scratch) = (&mut *self.stopped, self.scratch);
        let received = descriptor::pass(pid, stopped, scratch, mirror.as_fd())?;
        self.done.push(Done::Opened(received));
        self.proxy.descriptor = received;
        let arguments = [
            received,
            libc::F_DUPFD_CLOEXEC as u64,
            self.stopped.process.last_descriptor()?,
        ];
        // If that number is taken, it keeps the one that it has.
        if let Ok(moved) = self.stopped.call(0, libc::SYS_fcntl, &arguments) {
            self.call("moving its descriptor", 0, libc::SYS_close, &[received])?;
            self.done.pop();
            self.done.push(Done::Opened(moved));
            self.proxy.descriptor = moved;
        }
        self.ioctl("becoming a proxy", 0, ioctl::MIRROR_ADOPT, 0)?;
        let (slots, offset) = self.proxy.slots();
        let arguments = [
            slots.start,
            slots.end - slots.start,
            (libc::PROT_READ | libc::PROT_WRITE) as u64,
            (libc::MAP_SHARED | libc::MAP_FIXED) as u64,
            self.proxy.descriptor,
            offset,
        ];
        self.call("mapping its syscall slots", 0, libc::SYS_mmap, &arguments)
            .map(drop)
    }

    /// Gives each thread but the first, which has one, a slot and a stack.
    fn attach_threads(&mut self) -> Result<(), Failure> {
        for thread in 1..self.threads.len() {
            let slot = self.ioctl("getting a slot", 0, ioctl::MIRROR_SLOT_ALLOC, 0)?;
            self.ioctl("taking a slot", thread, ioctl::MIRROR_SLOT_ATTACH, slot)?;
            self.threads[thread].slot = slot as u32;
            let stack = self.proxy.stack(slot as u32);
            self.make_writable(stack)?;
        }
        Ok(())
    }

    fn write_contents(&mut self, polls: u64) -> Result<(), Failure> {
        let (code, data) = (self.proxy.code(), self.proxy.data());
        self.make_writable(code.start..data.end)?;
        let state = self.encode();
        let [blob, contents] = self.proxy.contents(polls, &state);
        self.stopped.memory.write(code.start, &blob)?;
        self.stopped.memory.write(data.start, &contents)?;
        self.protect((code.start, code.end), libc::PROT_READ | libc::PROT_EXEC)
    }

    fn encode(&self) -> Vec<u8> {
        let of_each = self.threads.iter().zip(&self.stopped.threads);
        let threads: Vec<_> = of_each
            .map(|(state, tracee)| {
                let mut registers = tracee.registers;
                restart::prepare(&mut registers);
                (state, registers, tracee.blocked)
            })
            .collect();
        let region = (self.proxy.region.address(), self.proxy.region.end());
        self.state.encode(region, &threads)
    }

    /// Maps the mirror where the process has nothing.
    fn map_holes(&mut self) -> Result<(), Failure> {
        let holes = self.proxy.holes();
        self.stopped.memory.write(self.scratch, holes.as_bytes())?;
        self.done.push(Done::MirrorMapped);
        let at = self.scratch;
        self.ioctl("mapping its program", 0, ioctl::MIRROR_MAP, at)
            .map(drop)
    }

    fn catch_signals(&mut self) -> Result<(), Failure> {
        for signal in 1..=SIGNALS as i32 {
            let program = words(&self.state.actions[signal as usize - 1]);
            if let Some(action) = self.proxy.action(signal, program) {
                self.done.push(Done::Caught(signal));
                self.set_action(signal, action)?;
            }
        }
        Ok(())
    }

    fn set_action(&mut self, signal: i32, action: [u64; 4]) -> Result<(), Failure> {
        self.stopped.memory.write(self.scratch, action.as_bytes())?;
        let arguments = [signal as u64, self.scratch, 0, SET_SIZE];
        self.call(
            "catching its signals",
            0,
            libc::SYS_rt_sigaction,
            &arguments,
        )
        .map(drop)
    }

    /// Has the base forget addresses of the program that its new kernel will use.
    fn forget_program(&mut self) -> Result<(), Failure> {
        const UNREGISTER: u64 = 1;
        for thread in 0..self.threads.len() {
            if self.threads[thread].rseq.address != 0 {
                self.set_rseq(thread, UNREGISTER)?;
                self.done.push(Done::Rseq(thread));
            }
            self.done.push(Done::TidAddress(thread));
            self.call("leaving its word", thread, libc::SYS_set_tid_address, &[0])?;
        }
        Ok(())
    }

    fn set_rseq(&mut self, thread: usize, flags: u64) -> Result<(), Failure> {
        let RseqConfiguration {
            address,
            size,
            signature,
            ..
        } = self.threads[thread].rseq;
        let arguments = [address, size.into(), flags, signature.into()];
        self.call("moving its rseq area", thread, libc::SYS_rseq, &arguments)
            .map(drop)
    }

    fn start(&mut self) -> Result<(), Failure> {
        let size = self.encode().len();
        let running = place::state_address(&self.proxy.region, size);
        let start = self.proxy.start(size as u64, running);
        self.stopped.memory.write(self.scratch, start.as_bytes())?;
        let at = self.scratch;
        self.ioctl("starting it on the node", 0, ioctl::MIRROR_START, at)
            .map(drop)
    }

    /// Undoes everything, in reverse order. What fails is left: the process may have been killed.
    fn undo(&mut self) {
        while let Some(done) = self.done.pop() {
            let _ = self.undo_one(done);
        }
    }

    fn undo_one(&mut self, done: Done) -> Result<(), Failure> {
        const REGISTER: u64 = 0;
        match done {
            Done::Region => {
                let region = self.proxy.region;
                self.unmap(region.address(), region.end())
            }
            Done::MirrorMapped => {
                let mappings = self.stopped.process.mappings()?;
                let mirrors = mappings.iter().filter(|one| one.name.contains(MIRROR));
                let region = self.proxy.region;
                mirrors
                    .filter(|one| one.vma.end <= region.address() || region.end() <= one.vma.start)
                    .try_for_each(|one| self.unmap(one.vma.start, one.vma.end))
            }
            Done::Opened(descriptor) => self
                .call("closing its descriptor", 0, libc::SYS_close, &[descriptor])
                .map(drop),
            Done::Caught(signal) => {
                let action = words(&self.state.actions[signal as usize - 1]);
                self.set_action(signal, action)
            }
            Done::Rseq(thread) => self.set_rseq(thread, REGISTER),
            Done::TidAddress(thread) => {
                let word = [self.threads[thread].clear_child_tid];
                self.call(
                    "restoring its word",
                    thread,
                    libc::SYS_set_tid_address,
                    &word,
                )
                .map(drop)
            }
        }
    }

    fn unmap(&mut self, start: u64, end: u64) -> Result<(), Failure> {
        self.call("unmapping", 0, libc::SYS_munmap, &[start, end - start])
            .map(drop)
    }
}

fn words(action: &Action) -> [u64; 4] {
    [action.handler, action.flags, action.restorer, action.mask]
}

/// Lets the threads go on as those of the proxy.
pub(crate) fn enter(proxy: &OtherProxy, threads: Vec<Tracee>, states: &[ThreadState]) {
    for (thread, state) in threads.into_iter().zip(states) {
        let registers = user_regs_struct {
            rip: proxy.region.address(),
            rdi: state.slot.into(),
            rsp: proxy.stack(state.slot).end,
            orig_rax: u64::MAX,
            eflags: 0x202,
            cs: thread.registers.cs,
            ss: thread.registers.ss,
            ..ptrace::no_registers()
        };
        // It fails only if it has been killed.
        let _: Result<(), Errno> = thread.release_with(registers, 0);
    }
}
