//! What this kernel does itself, of all calls in the table.

/// A call that this kernel does itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// Bases of FS and GS.
    ArchPrctl,
    /// The heap.
    Brk,
    /// The time.
    ClockGettime,
    /// A thread, or a copy of the program.
    Clone,
    /// A thread, or a copy of the program.
    Clone3,
    /// Files that are no more; the proxy's own descriptor is spared.
    CloseRange,
    /// Another program.
    Execve,
    /// Another program.
    Execveat,
    /// The end of a thread.
    Exit,
    /// The end of the program.
    ExitGroup,
    /// A copy of the program.
    Fork,
    /// Waiting for a word to change.
    Futex,
    /// The core.
    Getcpu,
    /// The program's id.
    Getpid,
    /// How nice a thread is; of other programs the base's.
    Getpriority,
    /// Limits; those that would not be the proxy's are kept.
    Getrlimit,
    /// The time that was used; the base says what it used for the program.
    Getrusage,
    /// The thread's id.
    Gettid,
    /// The time.
    Gettimeofday,
    /// A signal; of other programs the base's.
    Kill,
    /// What becomes of pages.
    Madvise,
    /// An order of memory accesses among all threads.
    Membarrier,
    /// Nothing: no page ever leaves memory.
    Mlock,
    /// Nothing: no memory is a file's.
    Msync,
    /// Memory, or a copy of a file.
    Mmap,
    /// Rights.
    Mprotect,
    /// Memory, moved.
    Mremap,
    /// Giving memory back.
    Munmap,
    /// Waiting for a signal.
    Pause,
    /// Whether programs are laid out at random.
    Personality,
    /// What is the program's own of it; the rest is the base's.
    Prctl,
    /// Restartable sequences.
    Rseq,
    /// What is to be done about a signal.
    RtSigaction,
    /// Signals that wait.
    RtSigpending,
    /// Which signals to put off.
    RtSigprocmask,
    /// A signal with a value.
    RtSigqueueinfo,
    /// The end of a handler.
    RtSigreturn,
    /// Waiting for a signal.
    RtSigsuspend,
    /// Waiting for a signal.
    RtSigtimedwait,
    /// A signal with a value, to a thread.
    RtTgsigqueueinfo,
    /// The cores that it may run on.
    SchedGetaffinity,
    /// When it runs.
    SchedGetattr,
    /// When it runs.
    SchedGetparam,
    /// When it runs.
    SchedGetscheduler,
    /// When it runs.
    SchedRrGetInterval,
    /// The cores that it may run on.
    SchedSetaffinity,
    /// When it runs.
    SchedSetattr,
    /// When it runs.
    SchedSetparam,
    /// When it runs.
    SchedSetscheduler,
    /// Limits, likewise.
    Prlimit64,
    /// Letting others run.
    SchedYield,
    /// How nice a thread is; of other programs the base's.
    Setpriority,
    /// Limits, likewise.
    Setrlimit,
    /// Futexes that the thread holds.
    SetRobustList,
    /// Where the end of the thread is told.
    SetTidAddress,
    /// A stack for handlers.
    Sigaltstack,
    /// The node's memory; all else the base says.
    Sysinfo,
    /// A signal to a thread; of other programs the base's.
    Tgkill,
    /// The time.
    Time,
    /// A timer of the base's.
    TimerCreate,
    /// The end of one.
    TimerDelete,
    /// The time that was used.
    Times,
    /// A signal to a thread; of other programs the base's.
    Tkill,
    /// A copy of the program.
    Vfork,
}
