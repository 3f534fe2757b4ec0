//! Numbers of the system calls that this kernel itself uses.

/// `close`.
pub const CLOSE: u64 = 3;
/// `stat`.
pub const STAT: u64 = 4;
/// `fstat`.
pub const FSTAT: u64 = 5;
/// `poll`.
pub const POLL: u64 = 7;
/// `rt_sigaction`.
pub const RT_SIGACTION: u64 = 13;
/// `rt_sigprocmask`.
pub const RT_SIGPROCMASK: u64 = 14;
/// `pread64`.
pub const PREAD64: u64 = 17;
/// `pwrite64`.
pub const PWRITE64: u64 = 18;
/// `madvise`.
pub const MADVISE: u64 = 28;
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
/// `getgid`.
pub const GETGID: u64 = 104;
/// `geteuid`.
pub const GETEUID: u64 = 107;
/// `getegid`.
pub const GETEGID: u64 = 108;
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
/// `prctl`.
pub const PRCTL: u64 = 157;
/// `tkill`.
pub const TKILL: u64 = 200;
/// `futex`.
pub const FUTEX: u64 = 202;
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
/// `openat`.
pub const OPENAT: u64 = 257;
/// `getrandom`.
pub const GETRANDOM: u64 = 318;
/// `close_range`.
pub const CLOSE_RANGE: u64 = 436;
/// `prlimit64`.
pub const PRLIMIT64: u64 = 302;
/// `faccessat2`.
pub const FACCESSAT2: u64 = 439;
