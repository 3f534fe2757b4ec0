//! Numbers of the system calls that this kernel itself uses.

/// `close`.
pub const CLOSE: u64 = 3;
/// `stat`.
pub const STAT: u64 = 4;
/// `fstat`.
pub const FSTAT: u64 = 5;
/// `poll`.
pub const POLL: u64 = 7;
/// `mmap`.
pub const MMAP: u64 = 9;
/// `mprotect`.
pub const MPROTECT: u64 = 10;
/// `munmap`.
pub const MUNMAP: u64 = 11;
/// `rt_sigaction`.
pub const RT_SIGACTION: u64 = 13;
/// `rt_sigprocmask`.
pub const RT_SIGPROCMASK: u64 = 14;
/// `ioctl`.
pub const IOCTL: u64 = 16;
/// `pread64`.
pub const PREAD64: u64 = 17;
/// `pwrite64`.
pub const PWRITE64: u64 = 18;
/// `mremap`.
pub const MREMAP: u64 = 25;
/// `msync`.
pub const MSYNC: u64 = 26;
/// `mincore`.
pub const MINCORE: u64 = 27;
/// `madvise`.
pub const MADVISE: u64 = 28;
/// `shmat`.
pub const SHMAT: u64 = 30;
/// `shmctl`.
pub const SHMCTL: u64 = 31;
/// `shmdt`.
pub const SHMDT: u64 = 67;
/// `pause`.
pub const PAUSE: u64 = 34;
/// `fcntl`.
pub const FCNTL: u64 = 72;
/// `kill`.
pub const KILL: u64 = 62;
/// `ftruncate`.
pub const FTRUNCATE: u64 = 77;
/// `getrlimit`.
pub const GETRLIMIT: u64 = 97;
/// `getrusage`.
pub const GETRUSAGE: u64 = 98;
/// `sysinfo`.
pub const SYSINFO: u64 = 99;
/// `times`.
pub const TIMES: u64 = 100;
/// `getuid`.
pub const GETUID: u64 = 102;
/// `geteuid`.
pub const GETEUID: u64 = 107;
/// `getresuid`.
pub const GETRESUID: u64 = 118;
/// `getresgid`.
pub const GETRESGID: u64 = 120;
/// `rt_sigqueueinfo`.
pub const RT_SIGQUEUEINFO: u64 = 129;
/// `rt_tgsigqueueinfo`.
pub const RT_TGSIGQUEUEINFO: u64 = 297;
/// `rt_sigtimedwait`.
pub const RT_SIGTIMEDWAIT: u64 = 128;
/// `rt_sigsuspend`.
pub const RT_SIGSUSPEND: u64 = 130;
/// `personality`.
pub const PERSONALITY: u64 = 135;
/// `getpriority`.
pub const GETPRIORITY: u64 = 140;
/// `setpriority`.
pub const SETPRIORITY: u64 = 141;
/// `munlock`.
pub const MUNLOCK: u64 = 150;
/// `mlock2`.
pub const MLOCK2: u64 = 325;
/// `prctl`.
pub const PRCTL: u64 = 157;
/// `ioperm`.
pub const IOPERM: u64 = 173;
/// `tkill`.
pub const TKILL: u64 = 200;
/// `futex`.
pub const FUTEX: u64 = 202;
/// `io_setup`.
pub const IO_SETUP: u64 = 206;
/// `io_destroy`.
pub const IO_DESTROY: u64 = 207;
/// `getdents64`.
pub const GETDENTS64: u64 = 217;
/// `timer_create`.
pub const TIMER_CREATE: u64 = 222;
/// `timer_delete`.
pub const TIMER_DELETE: u64 = 226;
/// `clock_gettime`.
pub const CLOCK_GETTIME: u64 = 228;
/// `tgkill`.
pub const TGKILL: u64 = 234;
/// `fstatfs`.
pub const FSTATFS: u64 = 138;
/// `perf_event_open`.
pub const PERF_EVENT_OPEN: u64 = 298;
/// `capget`.
pub const CAPGET: u64 = 125;
/// `openat`.
pub const OPENAT: u64 = 257;
/// `getrandom`.
pub const GETRANDOM: u64 = 318;
/// `close_range`.
pub const CLOSE_RANGE: u64 = 436;
/// `process_vm_readv`.
pub const PROCESS_VM_READV: u64 = 310;
/// `prlimit64`.
pub const PRLIMIT64: u64 = 302;
/// `faccessat2`.
pub const FACCESSAT2: u64 = 439;
/// `rt_sigpending`.
pub const RT_SIGPENDING: u64 = 127;
/// `signalfd`.
pub const SIGNALFD: u64 = 282;
/// `signalfd4`.
pub const SIGNALFD4: u64 = 289;
/// `io_uring_setup`.
pub const IO_URING_SETUP: u64 = 425;
/// `io_uring_enter`.
pub const IO_URING_ENTER: u64 = 426;
/// `io_uring_register`.
pub const IO_URING_REGISTER: u64 = 427;
