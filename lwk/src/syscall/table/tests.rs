//! Tests of the table.

use alloc::vec::Vec;

use super::*;
use crate::syscall::call::{Restart, TimeoutArgument};

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

/// Only local calls have functions here.
#[test]
fn every_local_call_has_a_function() {
    for call in TABLE {
        let is_local = call.kind == Kind::Local;
        assert_eq!(handler(call.number).is_some(), is_local, "{}", call.name);
    }
    assert!(handler(NEWEST + 1).is_none());
}

fn names(is: impl Fn(&Call) -> bool) -> Vec<&'static str> {
    let named = TABLE.iter().filter(|call| is(call));
    named.map(|call| call.name).collect()
}

fn is_delegated(call: &Call) -> bool {
    matches!(call.kind, Kind::Delegated | Kind::Masked(_))
}

/// On others they would have no effect.
#[test]
fn only_delegated_calls_have_properties_of_theirs() {
    let has = |call: &Call| {
        let acts = call.sets_uid || call.uses_terminal || call.spared_fds > 0;
        acts || call.timeout.is_some() || call.timer_flags.is_some()
    };
    assert_eq!(names(|call| has(call) && !is_delegated(call)), [""; 0]);
    assert!(!names(has).is_empty());
}

#[test]
fn properties_agree() {
    for call in TABLE {
        let mask = match call.kind {
            Kind::Masked(MaskArgument::Address(at) | MaskArgument::Structure(at)) => Some(at),
            _ => None,
        };
        let timeout = call.timeout.map(|timeout| match timeout {
            TimeoutArgument::Milliseconds(at) | TimeoutArgument::Timespec(at) => at,
        });
        let name = call.name;
        let arguments = [mask, timeout, call.timer_flags];
        assert!(arguments.iter().flatten().all(|&at| at < 6), "{name}");
        assert!(mask.is_none() || mask != timeout, "{name}");
        assert!(call.timer_flags.is_none() || timeout.is_some(), "{name}");
        // signal(7).
        let is_once = call.restart == Restart::WithoutHandler;
        assert!(timeout.is_none() || is_once, "{name}");
        assert!(mask.is_none() || is_once, "{name}");
    }
}

/// Linux itself writes back the remaining time of select, pselect6 and ppoll.
#[test]
fn calls_with_a_timeout_keep_it_over_a_restart() {
    let milliseconds = |at| names(|call| call.timeout == Some(TimeoutArgument::Milliseconds(at)));
    assert_eq!(milliseconds(2), ["poll"]);
    assert_eq!(milliseconds(3), ["epoll_wait", "epoll_pwait"]);
    let timespec = |at| names(|call| call.timeout == Some(TimeoutArgument::Timespec(at)));
    assert_eq!(timespec(0), ["nanosleep"]);
    assert_eq!(timespec(2), ["clock_nanosleep"]);
    assert_eq!(timespec(3), ["semtimedop", "epoll_pwait2"]);
    let by_flags = names(|call| call.timer_flags.is_some());
    assert_eq!(by_flags, ["clock_nanosleep"]);
}

#[test]
fn calls_act_on_user_terminal_and_descriptors() {
    let uid = ["setuid", "setreuid", "setresuid", "unshare", "setns"];
    assert_eq!(names(|call| call.sets_uid), uid);
    let terminal = ["read", "write", "ioctl", "readv", "writev"];
    assert_eq!(names(|call| call.uses_terminal), terminal);
    let fds = |count| names(|call| call.spared_fds == count);
    assert_eq!(fds(1), ["close", "ioctl", "dup", "fcntl"]);
    assert_eq!(fds(2), ["dup2", "dup3"]);
}

#[test]
fn some_are_never_restarted() {
    let never = names(|call| call.restart == Restart::Never);
    assert_eq!(never, ["close", "restart_syscall", "message_send"]);
    let by_argument = names(|call| matches!(call.restart, Restart::ByArgument(_)));
    assert_eq!(by_argument, ["futex"]);
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
