//! System calls that this kernel executes itself.

/// A system call executed by this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// Sets or gets the bases of FS and GS.
    ArchPrctl,
    /// Moves the end of the heap.
    Brk,
    /// Reads a clock.
    ClockGettime,
    /// Creates a thread or forks.
    Clone,
    /// Creates a thread or forks.
    Clone3,
    /// Closes files, except for the proxy's mm mirror.
    CloseRange,
    /// Executes another program.
    Execve,
    /// Executes another program.
    Execveat,
    /// Exits a thread.
    Exit,
    /// Exits the process.
    ExitGroup,
    /// Forks.
    Fork,
    /// Waits on a futex, or wakes its waiters.
    Futex,
    /// Returns the core.
    Getcpu,
    /// Returns the process id.
    Getpid,
    /// Returns a thread's nice value; delegated for other programs.
    Getpriority,
    /// Returns a limit; delegated for limits of the proxy.
    Getrlimit,
    /// Returns the CPU time used; the base adds what the proxy used.
    Getrusage,
    /// Returns the thread id.
    Gettid,
    /// Returns the time.
    Gettimeofday,
    /// Sends a signal; delegated for other programs.
    Kill,
    /// Changes how pages are handled.
    Madvise,
    /// Issues a memory barrier on all threads.
    Membarrier,
    /// Does nothing: pages are never swapped out.
    Mlock,
    /// Does nothing: mapped files are copies.
    Msync,
    /// Maps memory, or a copy of a file.
    Mmap,
    /// Changes the protection of memory.
    Mprotect,
    /// Resizes or moves a mapping.
    Mremap,
    /// Unmaps memory.
    Munmap,
    /// Waits for a signal.
    Pause,
    /// Enables or disables address space randomization.
    Personality,
    /// Handles what concerns the program itself; all else is delegated.
    Prctl,
    /// Registers restartable sequences.
    Rseq,
    /// Sets a signal's action.
    RtSigaction,
    /// Returns the pending signals.
    RtSigpending,
    /// Changes the signal mask.
    RtSigprocmask,
    /// Queues a signal with data.
    RtSigqueueinfo,
    /// Returns from a signal handler.
    RtSigreturn,
    /// Waits for a signal.
    RtSigsuspend,
    /// Waits for a signal.
    RtSigtimedwait,
    /// Queues a signal with data for a thread.
    RtTgsigqueueinfo,
    /// Returns a thread's core affinity.
    SchedGetaffinity,
    /// Returns scheduling attributes.
    SchedGetattr,
    /// Returns scheduling attributes.
    SchedGetparam,
    /// Returns scheduling attributes.
    SchedGetscheduler,
    /// Returns scheduling attributes.
    SchedRrGetInterval,
    /// Sets a thread's core affinity.
    SchedSetaffinity,
    /// Sets scheduling attributes.
    SchedSetattr,
    /// Sets scheduling attributes.
    SchedSetparam,
    /// Sets scheduling attributes.
    SchedSetscheduler,
    /// Gets or sets a limit; delegated for limits of the proxy.
    Prlimit64,
    /// Yields the core.
    SchedYield,
    /// Sets a thread's nice value; delegated for other programs.
    Setpriority,
    /// Sets a limit; delegated for limits of the proxy.
    Setrlimit,
    /// Sets the list of robust futexes.
    SetRobustList,
    /// Sets the word that is cleared when the thread exits.
    SetTidAddress,
    /// Sets the alternate signal stack.
    Sigaltstack,
    /// Returns the node's memory; all else comes from the base.
    Sysinfo,
    /// Sends a signal to a thread; delegated for other programs.
    Tgkill,
    /// Returns the time.
    Time,
    /// Creates a timer of the base.
    TimerCreate,
    /// Deletes a timer.
    TimerDelete,
    /// Returns the CPU time used.
    Times,
    /// Sends a signal to a thread; delegated for other programs.
    Tkill,
    /// Forks, and waits until the child executes a program or exits.
    Vfork,
}
