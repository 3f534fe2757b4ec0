//! A process all of whose threads are stopped.

use std::collections::BTreeSet;

use nix::errno::Errno;
use nix::libc::c_long;

use crate::failure::{Failure, Obstacle};
use crate::proc::{Mapping, Memory, Process};
use crate::ptrace::Tracee;
use crate::restart::{self, SEQUENCE_SIZE};

/// Name of the vDSO among a process's mappings.
pub(crate) const VDSO: &str = "[vdso]";
/// Offset of `rseq_cs` in `struct rseq`.
const AT_SEQUENCE: u64 = 8;
/// `CS` of a 64-bit program.
const CODE_64: u64 = 0x33;

/// A process all of whose threads are stopped; they go on when this is dropped.
#[derive(Debug)]
pub(crate) struct Stopped {
    pub(crate) process: Process,
    /// The thread group leader first.
    pub(crate) threads: Vec<Tracee>,
    pub(crate) memory: Memory,
    pub(crate) mappings: Vec<Mapping>,
    /// Address of an instruction `syscall`.
    syscall_at: u64,
}

/// Why there is none.
#[derive(Debug)]
pub(crate) enum NotStopped {
    Failed(Failure),
    /// It failed halfway back, and the process was killed.
    Lost(Failure),
    Obstacle(Obstacle),
}

impl From<Failure> for NotStopped {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Obstacle> for NotStopped {
    fn from(obstacle: Obstacle) -> Self {
        Self::Obstacle(obstacle)
    }
}

impl Stopped {
    /// Stops all threads of a process, also those that others create meanwhile.
    pub(crate) fn stop(process: Process) -> Result<Self, NotStopped> {
        let mut threads = stop_threads(process)?;
        threads.sort_by_key(|thread| (thread.id() != process.pid, thread.id()));
        if threads.first().map(Tracee::id) != Some(process.pid) {
            return Err(Obstacle::Ended.into());
        }
        if threads.iter().any(|thread| thread.registers.cs != CODE_64) {
            return Err(Obstacle::NotLong.into());
        }
        let memory = process.memory()?;
        for thread in &mut threads {
            leave_sequence(thread, &memory)?;
        }
        let mappings = process.mappings()?;
        let syscall_at = find_syscall(&mappings, &memory)?;
        Ok(Self {
            process,
            threads,
            memory,
            mappings,
            syscall_at,
        })
    }

    /// Has the thread with an index make a system call.
    pub(crate) fn call(
        &mut self,
        thread: usize,
        number: c_long,
        arguments: &[u64],
    ) -> Result<u64, Errno> {
        let at = self.syscall_at;
        self.threads[thread].call(at, number, arguments)
    }
}

/// Stops all threads. If that fails halfway, those that are stopped go on when this process exits.
fn stop_threads(process: Process) -> Result<Vec<Tracee>, Failure> {
    let (mut known, mut threads) = (BTreeSet::new(), Vec::new());
    loop {
        let new: Vec<_> = process
            .threads()?
            .into_iter()
            .filter(|&id| known.insert(id))
            .collect();
        if new.is_empty() {
            return Ok(threads);
        }
        let mut stopping = Vec::new();
        for id in new {
            match Tracee::interrupt(id) {
                Ok(pid) => stopping.push(pid),
                // It may just have ended.
                Err(failure) if process.threads()?.contains(&id) => return Err(failure),
                Err(_) => {}
            }
        }
        for pid in stopping {
            threads.push(Tracee::stopped(pid)?);
        }
    }
}

/// Aborts the restartable sequence that a thread was in: the calls that it makes for us would have the
/// kernel forget it.
fn leave_sequence(thread: &mut Tracee, memory: &Memory) -> Result<(), Failure> {
    let rseq = thread.rseq()?;
    if rseq.address == 0 {
        return Ok(());
    }
    let [sequence] = memory.words(rseq.address + AT_SEQUENCE)?;
    // What cannot be read is the program's error, which its kernel will find.
    if sequence != 0
        && let Ok(words) = memory.words::<{ SEQUENCE_SIZE / 8 }>(sequence)
    {
        thread.registers.rip = restart::after_sequence(thread.registers.rip, words);
    }
    Ok(())
}

/// Finds an instruction `syscall` in the vDSO.
fn find_syscall(mappings: &[Mapping], memory: &Memory) -> Result<u64, NotStopped> {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    let vdso = mappings.iter().find(|mapping| mapping.name == VDSO);
    let vdso = vdso.ok_or(Obstacle::NoVdso)?.vma;
    let mut code = vec![0; (vdso.end - vdso.start) as usize];
    memory.read(vdso.start, &mut code)?;
    let at = code.windows(2).position(|bytes| bytes == SYSCALL);
    Ok(vdso.start + at.ok_or(Obstacle::NoVdso)? as u64)
}
