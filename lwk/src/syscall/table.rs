//! Table of all system calls on x86-64 up to Linux 6.12, and how this kernel handles each. Calls
//! that concern the caller itself are not delegated blindly: what would act on the proxy is
//! executed here or refused.

use crate::model::errno::Errno;
use crate::syscall::local::Local;

/// Handling of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Executed by this kernel.
    Local(Local),
    /// Executed by the base.
    Delegated,
    /// Executed by the base, with the signal mask argument handled by this kernel.
    Masked {
        /// Index of that argument.
        argument: usize,
    },
    /// Refused.
    Refused {
        /// Error that the program gets.
        errno: Errno,
        /// Reason.
        why: &'static str,
    },
}

/// A system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its number.
    pub number: u64,
    /// Its name.
    pub name: &'static str,
    /// Its handling.
    pub kind: Kind,
}

macro_rules! kind {
    (delegated) => {
        Kind::Delegated
    };
    (masked $argument:literal) => {
        Kind::Masked {
            argument: $argument,
        }
    };
    (local $local:ident) => {
        Kind::Local(Local::$local)
    };
    (refused $errno:ident $why:literal) => {
        Kind::Refused {
            errno: Errno::$errno,
            why: $why,
        }
    };
}

macro_rules! table {
    ($($number:literal $name:ident => [$($kind:tt)+]),+ $(,)?) => {
        &[$(Call {
            number: $number,
            name: stringify!($name),
            kind: kind!($($kind)+),
        }),+]
    };
}

/// Finds a call by its number; `None` if Linux 6.12 does not have it.
#[must_use]
pub fn find(number: u64) -> Option<&'static Call> {
    let index = TABLE.binary_search_by_key(&number, |call| call.number);
    index.ok().map(|index| &TABLE[index])
}

/// All calls, ascending. Source: arch/x86/entry/syscalls/syscall_64.tbl of Linux 6.12.
#[rustfmt::skip]
pub const TABLE: &[Call] = table! {
    0 read => [delegated],
    1 write => [delegated],
    2 open => [delegated],
    3 close => [delegated],
    4 stat => [delegated],
    5 fstat => [delegated],
    6 lstat => [delegated],
    7 poll => [delegated],
    8 lseek => [delegated],
    9 mmap => [local Mmap],
    10 mprotect => [local Mprotect],
    11 munmap => [local Munmap],
    12 brk => [local Brk],
    13 rt_sigaction => [local RtSigaction],
    14 rt_sigprocmask => [local RtSigprocmask],
    15 rt_sigreturn => [local RtSigreturn],
    16 ioctl => [delegated],
    17 pread64 => [delegated],
    18 pwrite64 => [delegated],
    19 readv => [delegated],
    20 writev => [delegated],
    21 access => [delegated],
    22 pipe => [delegated],
    23 select => [delegated],
    24 sched_yield => [local SchedYield],
    25 mremap => [local Mremap],
    26 msync => [local Msync],
    27 mincore => [refused ENOSYS "not implemented: this kernel would have to report its own pages"],
    28 madvise => [local Madvise],
    29 shmget => [delegated],
    30 shmat => [refused ENOSYS "it would map the segment in the proxy, not in the program"],
    31 shmctl => [delegated],
    32 dup => [delegated],
    33 dup2 => [delegated],
    34 pause => [local Pause],
    35 nanosleep => [delegated],
    36 getitimer => [delegated],
    37 alarm => [delegated],
    38 setitimer => [delegated],
    39 getpid => [local Getpid],
    40 sendfile => [delegated],
    41 socket => [delegated],
    42 connect => [delegated],
    43 accept => [delegated],
    44 sendto => [delegated],
    45 recvfrom => [delegated],
    46 sendmsg => [delegated],
    47 recvmsg => [delegated],
    48 shutdown => [delegated],
    49 bind => [delegated],
    50 listen => [delegated],
    51 getsockname => [delegated],
    52 getpeername => [delegated],
    53 socketpair => [delegated],
    54 setsockopt => [delegated],
    55 getsockopt => [delegated],
    56 clone => [local Clone],
    57 fork => [local Fork],
    58 vfork => [local Vfork],
    59 execve => [local Execve],
    60 exit => [local Exit],
    61 wait4 => [delegated],
    62 kill => [local Kill],
    63 uname => [delegated],
    64 semget => [delegated],
    65 semop => [delegated],
    66 semctl => [delegated],
    67 shmdt => [refused ENOSYS "it would map the segment in the proxy, not in the program"],
    68 msgget => [delegated],
    69 msgsnd => [delegated],
    70 msgrcv => [delegated],
    71 msgctl => [delegated],
    72 fcntl => [delegated],
    73 flock => [delegated],
    74 fsync => [delegated],
    75 fdatasync => [delegated],
    76 truncate => [delegated],
    77 ftruncate => [delegated],
    78 getdents => [delegated],
    79 getcwd => [delegated],
    80 chdir => [delegated],
    81 fchdir => [delegated],
    82 rename => [delegated],
    83 mkdir => [delegated],
    84 rmdir => [delegated],
    85 creat => [delegated],
    86 link => [delegated],
    87 unlink => [delegated],
    88 symlink => [delegated],
    89 readlink => [delegated],
    90 chmod => [delegated],
    91 fchmod => [delegated],
    92 chown => [delegated],
    93 fchown => [delegated],
    94 lchown => [delegated],
    95 umask => [delegated],
    96 gettimeofday => [local Gettimeofday],
    97 getrlimit => [local Getrlimit],
    98 getrusage => [local Getrusage],
    99 sysinfo => [local Sysinfo],
    100 times => [local Times],
    101 ptrace => [refused EPERM "it would trace the proxy, not the program"],
    102 getuid => [delegated],
    103 syslog => [delegated],
    104 getgid => [delegated],
    105 setuid => [delegated],
    106 setgid => [delegated],
    107 geteuid => [delegated],
    108 getegid => [delegated],
    109 setpgid => [delegated],
    110 getppid => [delegated],
    111 getpgrp => [delegated],
    112 setsid => [delegated],
    113 setreuid => [delegated],
    114 setregid => [delegated],
    115 getgroups => [delegated],
    116 setgroups => [delegated],
    117 setresuid => [delegated],
    118 getresuid => [delegated],
    119 setresgid => [delegated],
    120 getresgid => [delegated],
    121 getpgid => [delegated],
    122 setfsuid => [delegated],
    123 setfsgid => [delegated],
    124 getsid => [delegated],
    125 capget => [delegated],
    126 capset => [delegated],
    127 rt_sigpending => [local RtSigpending],
    128 rt_sigtimedwait => [local RtSigtimedwait],
    129 rt_sigqueueinfo => [local RtSigqueueinfo],
    130 rt_sigsuspend => [local RtSigsuspend],
    131 sigaltstack => [local Sigaltstack],
    132 utime => [delegated],
    133 mknod => [delegated],
    134 uselib => [refused ENOSYS "Linux does not implement it either"],
    135 personality => [local Personality],
    136 ustat => [delegated],
    137 statfs => [delegated],
    138 fstatfs => [delegated],
    139 sysfs => [delegated],
    140 getpriority => [local Getpriority],
    141 setpriority => [local Setpriority],
    142 sched_setparam => [local SchedSetparam],
    143 sched_getparam => [local SchedGetparam],
    144 sched_setscheduler => [local SchedSetscheduler],
    145 sched_getscheduler => [local SchedGetscheduler],
    146 sched_get_priority_max => [delegated],
    147 sched_get_priority_min => [delegated],
    148 sched_rr_get_interval => [local SchedRrGetInterval],
    149 mlock => [local Mlock],
    150 munlock => [local Mlock],
    151 mlockall => [local Mlock],
    152 munlockall => [local Mlock],
    153 vhangup => [delegated],
    154 modify_ldt => [refused ENOSYS "there is no local descriptor table"],
    155 pivot_root => [delegated],
    156 _sysctl => [refused ENOSYS "Linux does not implement it either"],
    157 prctl => [local Prctl],
    158 arch_prctl => [local ArchPrctl],
    159 adjtimex => [delegated],
    160 setrlimit => [local Setrlimit],
    161 chroot => [delegated],
    162 sync => [delegated],
    163 acct => [delegated],
    164 settimeofday => [delegated],
    165 mount => [delegated],
    166 umount2 => [delegated],
    167 swapon => [delegated],
    168 swapoff => [delegated],
    169 reboot => [refused EPERM "a delegated program must not change the base's kernel"],
    170 sethostname => [delegated],
    171 setdomainname => [delegated],
    172 iopl => [refused EPERM "I/O ports belong to the base"],
    173 ioperm => [refused EPERM "I/O ports belong to the base"],
    174 create_module => [refused ENOSYS "Linux does not implement it either"],
    175 init_module => [refused EPERM "a delegated program must not change the base's kernel"],
    176 delete_module => [refused EPERM "a delegated program must not change the base's kernel"],
    177 get_kernel_syms => [refused ENOSYS "Linux does not implement it either"],
    178 query_module => [refused ENOSYS "Linux does not implement it either"],
    179 quotactl => [delegated],
    180 nfsservctl => [refused ENOSYS "Linux does not implement it either"],
    181 getpmsg => [refused ENOSYS "Linux does not implement it either"],
    182 putpmsg => [refused ENOSYS "Linux does not implement it either"],
    183 afs_syscall => [refused ENOSYS "Linux does not implement it either"],
    184 tuxcall => [refused ENOSYS "Linux does not implement it either"],
    185 security => [refused ENOSYS "Linux does not implement it either"],
    186 gettid => [local Gettid],
    187 readahead => [delegated],
    188 setxattr => [delegated],
    189 lsetxattr => [delegated],
    190 fsetxattr => [delegated],
    191 getxattr => [delegated],
    192 lgetxattr => [delegated],
    193 fgetxattr => [delegated],
    194 listxattr => [delegated],
    195 llistxattr => [delegated],
    196 flistxattr => [delegated],
    197 removexattr => [delegated],
    198 lremovexattr => [delegated],
    199 fremovexattr => [delegated],
    200 tkill => [local Tkill],
    201 time => [local Time],
    202 futex => [local Futex],
    203 sched_setaffinity => [local SchedSetaffinity],
    204 sched_getaffinity => [local SchedGetaffinity],
    205 set_thread_area => [refused ENOSYS "only for 32-bit programs"],
    206 io_setup => [refused ENOSYS "its ring is memory of the base, which the program cannot map"],
    207 io_destroy => [delegated],
    208 io_getevents => [delegated],
    209 io_submit => [delegated],
    210 io_cancel => [delegated],
    211 get_thread_area => [refused ENOSYS "only for 32-bit programs"],
    212 lookup_dcookie => [refused ENOSYS "Linux does not implement it either"],
    213 epoll_create => [delegated],
    214 epoll_ctl_old => [refused ENOSYS "Linux does not implement it either"],
    215 epoll_wait_old => [refused ENOSYS "Linux does not implement it either"],
    216 remap_file_pages => [refused ENOSYS "deprecated: Linux itself only emulates it"],
    217 getdents64 => [delegated],
    218 set_tid_address => [local SetTidAddress],
    219 restart_syscall => [refused EINTR "interrupted calls are not restarted by it"],
    220 semtimedop => [delegated],
    221 fadvise64 => [delegated],
    222 timer_create => [local TimerCreate],
    223 timer_settime => [delegated],
    224 timer_gettime => [delegated],
    225 timer_getoverrun => [delegated],
    226 timer_delete => [local TimerDelete],
    227 clock_settime => [delegated],
    228 clock_gettime => [local ClockGettime],
    229 clock_getres => [delegated],
    230 clock_nanosleep => [delegated],
    231 exit_group => [local ExitGroup],
    232 epoll_wait => [delegated],
    233 epoll_ctl => [delegated],
    234 tgkill => [local Tgkill],
    235 utimes => [delegated],
    236 vserver => [refused ENOSYS "Linux does not implement it either"],
    237 mbind => [refused ENOSYS "no NUMA policy, as on a Linux without CONFIG_NUMA"],
    238 set_mempolicy => [refused ENOSYS "no NUMA policy, as on a Linux without CONFIG_NUMA"],
    239 get_mempolicy => [refused ENOSYS "no NUMA policy, as on a Linux without CONFIG_NUMA"],
    240 mq_open => [delegated],
    241 mq_unlink => [delegated],
    242 mq_timedsend => [delegated],
    243 mq_timedreceive => [delegated],
    244 mq_notify => [delegated],
    245 mq_getsetattr => [delegated],
    246 kexec_load => [refused EPERM "a delegated program must not change the base's kernel"],
    247 waitid => [delegated],
    248 add_key => [delegated],
    249 request_key => [delegated],
    250 keyctl => [delegated],
    251 ioprio_set => [delegated],
    252 ioprio_get => [delegated],
    253 inotify_init => [delegated],
    254 inotify_add_watch => [delegated],
    255 inotify_rm_watch => [delegated],
    256 migrate_pages => [refused ENOSYS "no NUMA policy, as on a Linux without CONFIG_NUMA"],
    257 openat => [delegated],
    258 mkdirat => [delegated],
    259 mknodat => [delegated],
    260 fchownat => [delegated],
    261 futimesat => [delegated],
    262 newfstatat => [delegated],
    263 unlinkat => [delegated],
    264 renameat => [delegated],
    265 linkat => [delegated],
    266 symlinkat => [delegated],
    267 readlinkat => [delegated],
    268 fchmodat => [delegated],
    269 faccessat => [delegated],
    270 pselect6 => [masked 5],
    271 ppoll => [masked 3],
    272 unshare => [delegated],
    273 set_robust_list => [local SetRobustList],
    274 get_robust_list => [refused ENOSYS "not implemented: only debuggers use it"],
    275 splice => [delegated],
    276 tee => [delegated],
    277 sync_file_range => [delegated],
    278 vmsplice => [delegated],
    279 move_pages => [refused ENOSYS "no NUMA policy, as on a Linux without CONFIG_NUMA"],
    280 utimensat => [delegated],
    281 epoll_pwait => [masked 4],
    282 signalfd => [refused ENOSYS "signals are queued in this kernel; the base has none to read"],
    283 timerfd_create => [delegated],
    284 eventfd => [delegated],
    285 fallocate => [delegated],
    286 timerfd_settime => [delegated],
    287 timerfd_gettime => [delegated],
    288 accept4 => [delegated],
    289 signalfd4 => [refused ENOSYS "signals are queued in this kernel; the base has none to read"],
    290 eventfd2 => [delegated],
    291 epoll_create1 => [delegated],
    292 dup3 => [delegated],
    293 pipe2 => [delegated],
    294 inotify_init1 => [delegated],
    295 preadv => [delegated],
    296 pwritev => [delegated],
    297 rt_tgsigqueueinfo => [local RtTgsigqueueinfo],
    298 perf_event_open => [refused EPERM "it would count the proxy's events, not the program's"],
    299 recvmmsg => [delegated],
    300 fanotify_init => [delegated],
    301 fanotify_mark => [delegated],
    302 prlimit64 => [local Prlimit64],
    303 name_to_handle_at => [delegated],
    304 open_by_handle_at => [delegated],
    305 clock_adjtime => [delegated],
    306 syncfs => [delegated],
    307 sendmmsg => [delegated],
    308 setns => [delegated],
    309 getcpu => [local Getcpu],
    310 process_vm_readv => [delegated],
    311 process_vm_writev => [delegated],
    312 kcmp => [delegated],
    313 finit_module => [refused EPERM "a delegated program must not change the base's kernel"],
    314 sched_setattr => [local SchedSetattr],
    315 sched_getattr => [local SchedGetattr],
    316 renameat2 => [delegated],
    317 seccomp => [refused EINVAL "it would filter the proxy's system calls"],
    318 getrandom => [delegated],
    319 memfd_create => [delegated],
    320 kexec_file_load => [refused EPERM "a delegated program must not change the base's kernel"],
    321 bpf => [delegated],
    322 execveat => [local Execveat],
    323 userfaultfd => [refused ENOSYS "page faults are handled by this kernel, not by the base"],
    324 membarrier => [local Membarrier],
    325 mlock2 => [local Mlock],
    326 copy_file_range => [delegated],
    327 preadv2 => [delegated],
    328 pwritev2 => [delegated],
    329 pkey_mprotect => [refused ENOSYS "as on a processor without protection keys"],
    330 pkey_alloc => [refused ENOSYS "as on a processor without protection keys"],
    331 pkey_free => [refused ENOSYS "as on a processor without protection keys"],
    332 statx => [delegated],
    333 io_pgetevents => [delegated],
    334 rseq => [local Rseq],
    335 uretprobe => [refused ENOSYS "only uprobes of the base use it"],
    424 pidfd_send_signal => [delegated],
    425 io_uring_setup => [refused ENOSYS "its rings are memory of the base, which the program cannot map"],
    426 io_uring_enter => [refused ENOSYS "its rings are memory of the base, which the program cannot map"],
    427 io_uring_register => [refused ENOSYS "its rings are memory of the base, which the program cannot map"],
    428 open_tree => [delegated],
    429 move_mount => [delegated],
    430 fsopen => [delegated],
    431 fsconfig => [delegated],
    432 fsmount => [delegated],
    433 fspick => [delegated],
    434 pidfd_open => [delegated],
    435 clone3 => [local Clone3],
    436 close_range => [local CloseRange],
    437 openat2 => [delegated],
    438 pidfd_getfd => [delegated],
    439 faccessat2 => [delegated],
    440 process_madvise => [refused ENOSYS "it would apply to the proxy's memory"],
    441 epoll_pwait2 => [masked 4],
    442 mount_setattr => [delegated],
    443 quotactl_fd => [delegated],
    444 landlock_create_ruleset => [delegated],
    445 landlock_add_rule => [delegated],
    446 landlock_restrict_self => [delegated],
    447 memfd_secret => [refused ENOSYS "its memory is inaccessible to the kernel that would have to map it"],
    448 process_mrelease => [delegated],
    449 futex_waitv => [refused ENOSYS "as on an older Linux: programs use futex instead"],
    450 set_mempolicy_home_node => [refused ENOSYS "no NUMA policy, as on a Linux without CONFIG_NUMA"],
    451 cachestat => [delegated],
    452 fchmodat2 => [delegated],
    453 map_shadow_stack => [refused ENOSYS "as on a processor without shadow stacks"],
    454 futex_wake => [refused ENOSYS "as on an older Linux: programs use futex instead"],
    455 futex_wait => [refused ENOSYS "as on an older Linux: programs use futex instead"],
    456 futex_requeue => [refused ENOSYS "as on an older Linux: programs use futex instead"],
    457 statmount => [delegated],
    458 listmount => [delegated],
    459 lsm_get_self_attr => [delegated],
    460 lsm_set_self_attr => [delegated],
    461 lsm_list_modules => [delegated],
    462 mseal => [refused ENOSYS "as on a Linux before 6.10"],
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Highest number in Linux 6.12: mseal.
    const NEWEST: u64 = 462;

    #[test]
    fn every_number_is_in_the_table_once() {
        // Numbers of x32 calls, and unused ones.
        let unused = |number: u64| (336..424).contains(&number);
        for number in 0..=NEWEST {
            let call = find(number);
            assert_eq!(call.is_none(), unused(number), "{number}");
            assert!(call.is_none_or(|call| call.number == number));
        }
        assert!(TABLE.is_sorted_by(|one, next| one.number < next.number));
        assert_eq!(find(NEWEST + 1), None);
        assert_eq!(find(u64::MAX), None);
    }

    #[test]
    fn every_refusal_has_a_reason() {
        for call in TABLE {
            if let Kind::Refused { why, errno } = call.kind {
                assert!(why.len() > 8 && errno.0 > 0, "{}", call.name);
            }
        }
    }

    /// By the header of this machine's C library.
    #[test]
    fn numbers_match_linux() {
        let header = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h";
        let Ok(text) = std::fs::read_to_string(header) else {
            return;
        };
        let lines = text
            .lines()
            .filter_map(|line| line.strip_prefix("#define __NR_"));
        for (name, number) in lines.filter_map(|line| line.split_once(' ')) {
            let number: u64 = number.trim().parse().unwrap();
            if number <= NEWEST {
                assert_eq!(find(number).map(|call| call.name), Some(name));
            }
        }
    }

    /// Calls that change the caller's memory, threads or registers must not act on the proxy.
    #[test]
    fn nothing_about_the_caller_is_delegated() {
        for name in [
            "mmap",
            "munmap",
            "mprotect",
            "mremap",
            "brk",
            "madvise",
            "clone",
            "clone3",
            "fork",
            "vfork",
            "execve",
            "execveat",
            "exit",
            "exit_group",
            "arch_prctl",
            "set_tid_address",
            "futex",
            "set_robust_list",
            "rseq",
            "membarrier",
            "rt_sigaction",
            "rt_sigprocmask",
            "rt_sigreturn",
            "sigaltstack",
            "userfaultfd",
            "io_uring_setup",
            "shmat",
            "ptrace",
            "seccomp",
            "prctl",
            "sched_setaffinity",
            "sched_getaffinity",
            "sched_setscheduler",
            "sched_getscheduler",
            "sched_setattr",
            "pkey_mprotect",
            "modify_ldt",
            "remap_file_pages",
            "mseal",
        ] {
            let mut named = TABLE.iter().filter(|call| call.name == name);
            let call = named.next().unwrap_or_else(|| panic!("{name}"));
            assert_ne!(call.kind, Kind::Delegated, "{name}");
        }
    }
}
