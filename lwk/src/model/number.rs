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
/// `read`.
pub const READ: u64 = 0;
/// `write`.
pub const WRITE: u64 = 1;
/// `open`.
pub const OPEN: u64 = 2;
/// `lstat`.
pub const LSTAT: u64 = 6;
/// `lseek`.
pub const LSEEK: u64 = 8;
/// `readv`.
pub const READV: u64 = 19;
/// `writev`.
pub const WRITEV: u64 = 20;
/// `access`.
pub const ACCESS: u64 = 21;
/// `dup`.
pub const DUP: u64 = 32;
/// `dup2`.
pub const DUP2: u64 = 33;
/// `sendfile`.
pub const SENDFILE: u64 = 40;
/// `execve`.
pub const EXECVE: u64 = 59;
/// `flock`.
pub const FLOCK: u64 = 73;
/// `fsync`.
pub const FSYNC: u64 = 74;
/// `fdatasync`.
pub const FDATASYNC: u64 = 75;
/// `truncate`.
pub const TRUNCATE: u64 = 76;
/// `getcwd`.
pub const GETCWD: u64 = 79;
/// `chdir`.
pub const CHDIR: u64 = 80;
/// `fchdir`.
pub const FCHDIR: u64 = 81;
/// `rename`.
pub const RENAME: u64 = 82;
/// `mkdir`.
pub const MKDIR: u64 = 83;
/// `rmdir`.
pub const RMDIR: u64 = 84;
/// `creat`.
pub const CREAT: u64 = 85;
/// `link`.
pub const LINK: u64 = 86;
/// `unlink`.
pub const UNLINK: u64 = 87;
/// `symlink`.
pub const SYMLINK: u64 = 88;
/// `readlink`.
pub const READLINK: u64 = 89;
/// `chmod`.
pub const CHMOD: u64 = 90;
/// `fchmod`.
pub const FCHMOD: u64 = 91;
/// `chown`.
pub const CHOWN: u64 = 92;
/// `fchown`.
pub const FCHOWN: u64 = 93;
/// `lchown`.
pub const LCHOWN: u64 = 94;
/// `umask`.
pub const UMASK: u64 = 95;
/// `utime`.
pub const UTIME: u64 = 132;
/// `statfs`.
pub const STATFS: u64 = 137;
/// `readahead`.
pub const READAHEAD: u64 = 187;
/// `fadvise64`.
pub const FADVISE64: u64 = 221;
/// `utimes`.
pub const UTIMES: u64 = 235;
/// `mkdirat`.
pub const MKDIRAT: u64 = 258;
/// `fchownat`.
pub const FCHOWNAT: u64 = 260;
/// `futimesat`.
pub const FUTIMESAT: u64 = 261;
/// `newfstatat`.
pub const NEWFSTATAT: u64 = 262;
/// `unlinkat`.
pub const UNLINKAT: u64 = 263;
/// `renameat`.
pub const RENAMEAT: u64 = 264;
/// `linkat`.
pub const LINKAT: u64 = 265;
/// `symlinkat`.
pub const SYMLINKAT: u64 = 266;
/// `readlinkat`.
pub const READLINKAT: u64 = 267;
/// `fchmodat`.
pub const FCHMODAT: u64 = 268;
/// `faccessat`.
pub const FACCESSAT: u64 = 269;
/// `splice`.
pub const SPLICE: u64 = 275;
/// `sync_file_range`.
pub const SYNC_FILE_RANGE: u64 = 277;
/// `utimensat`.
pub const UTIMENSAT: u64 = 280;
/// `fallocate`.
pub const FALLOCATE: u64 = 285;
/// `dup3`.
pub const DUP3: u64 = 292;
/// `preadv`.
pub const PREADV: u64 = 295;
/// `pwritev`.
pub const PWRITEV: u64 = 296;
/// `syncfs`.
pub const SYNCFS: u64 = 306;
/// `renameat2`.
pub const RENAMEAT2: u64 = 316;
/// `execveat`.
pub const EXECVEAT: u64 = 322;
/// `copy_file_range`.
pub const COPY_FILE_RANGE: u64 = 326;
/// `preadv2`.
pub const PREADV2: u64 = 327;
/// `pwritev2`.
pub const PWRITEV2: u64 = 328;
/// `statx`.
pub const STATX: u64 = 332;
/// `openat2`.
pub const OPENAT2: u64 = 437;
/// `fchmodat2`.
pub const FCHMODAT2: u64 = 452;
/// `mknod`.
pub const MKNOD: u64 = 133;
/// `chroot`.
pub const CHROOT: u64 = 161;
/// `setxattr`.
pub const SETXATTR: u64 = 188;
/// `lsetxattr`.
pub const LSETXATTR: u64 = 189;
/// `fsetxattr`.
pub const FSETXATTR: u64 = 190;
/// `getxattr`.
pub const GETXATTR: u64 = 191;
/// `lgetxattr`.
pub const LGETXATTR: u64 = 192;
/// `fgetxattr`.
pub const FGETXATTR: u64 = 193;
/// `listxattr`.
pub const LISTXATTR: u64 = 194;
/// `llistxattr`.
pub const LLISTXATTR: u64 = 195;
/// `flistxattr`.
pub const FLISTXATTR: u64 = 196;
/// `removexattr`.
pub const REMOVEXATTR: u64 = 197;
/// `lremovexattr`.
pub const LREMOVEXATTR: u64 = 198;
/// `fremovexattr`.
pub const FREMOVEXATTR: u64 = 199;
/// `inotify_add_watch`.
pub const INOTIFY_ADD_WATCH: u64 = 254;
/// `mknodat`.
pub const MKNODAT: u64 = 259;
/// `select`.
pub const SELECT: u64 = 23;
/// `socket`.
pub const SOCKET: u64 = 41;
/// `connect`.
pub const CONNECT: u64 = 42;
/// `accept`.
pub const ACCEPT: u64 = 43;
/// `sendto`.
pub const SENDTO: u64 = 44;
/// `recvfrom`.
pub const RECVFROM: u64 = 45;
/// `sendmsg`.
pub const SENDMSG: u64 = 46;
/// `recvmsg`.
pub const RECVMSG: u64 = 47;
/// `shutdown`.
pub const SHUTDOWN: u64 = 48;
/// `bind`.
pub const BIND: u64 = 49;
/// `listen`.
pub const LISTEN: u64 = 50;
/// `getsockname`.
pub const GETSOCKNAME: u64 = 51;
/// `getpeername`.
pub const GETPEERNAME: u64 = 52;
/// `setsockopt`.
pub const SETSOCKOPT: u64 = 54;
/// `getsockopt`.
pub const GETSOCKOPT: u64 = 55;
/// `epoll_create`.
pub const EPOLL_CREATE: u64 = 213;
/// `epoll_wait`.
pub const EPOLL_WAIT: u64 = 232;
/// `epoll_ctl`.
pub const EPOLL_CTL: u64 = 233;
/// `pselect6`.
pub const PSELECT6: u64 = 270;
/// `ppoll`.
pub const PPOLL: u64 = 271;
/// `epoll_pwait`.
pub const EPOLL_PWAIT: u64 = 281;
/// `accept4`.
pub const ACCEPT4: u64 = 288;
/// `epoll_create1`.
pub const EPOLL_CREATE1: u64 = 291;
/// `recvmmsg`.
pub const RECVMMSG: u64 = 299;
/// `sendmmsg`.
pub const SENDMMSG: u64 = 307;
/// `epoll_pwait2`.
pub const EPOLL_PWAIT2: u64 = 441;
