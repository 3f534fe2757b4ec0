//! Tests of the table.

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

/// Only local calls have functions here.
#[test]
fn every_local_call_has_a_function() {
    for call in TABLE {
        let is_local = call.kind == Kind::Local;
        assert_eq!(handler(call.number).is_some(), is_local, "{}", call.name);
    }
    assert!(handler(NEWEST + 1).is_none());
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
