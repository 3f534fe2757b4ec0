/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * insula_running.h - a running process of the base that goes on as a program on a lightweight
 * kernel: its state, which the base hands over by INSULA_LWK_ARGUMENTS (insula_lwk.h, "Running
 * programs")
 *
 * A block of bytes: struct insula_lwk_running, then as many as it says of
 *
 *	struct insula_lwk_running_vma		ascending, none overlaps another
 *	struct insula_lwk_running_timer
 *	struct insula_lwk_running_thread	the first is the thread group leader
 *	extended states				of each thread, in the same order
 *	the auxiliary vector, and the path of the program's file
 *
 * The state of a program that leaves the LWK is the same, but that it names only the VMAs that are
 * memory of the LWK, and the signals that are pending in place of those of signalfds. It goes on
 * with
 *
 *	struct insula_lwk_running_range		up to the end: parts of the VMAs that have content
 */
#ifndef INSULA_RUNNING_H
#define INSULA_RUNNING_H

#include <linux/types.h>

/* An action for a signal: the kernel's struct sigaction. */
struct insula_lwk_running_action {
	__u64 handler;
	__u64 flags;
	__u64 restorer;
	__u64 mask;
};

/* Signals that can have an action. */
#define INSULA_LWK_RUNNING_SIGNALS	64

struct insula_lwk_running {
	__u64 size;		/* of the block, in bytes */
	/* The proxy's own part of the addresses between mirror_start and mirror_end. */
	__u64 region_start;
	__u64 region_end;
	__u64 heap_start;	/* of brk(2) */
	__u64 heap_end;
	__u64 stack_start;	/* of the first thread; both 0: there is none that grows */
	__u64 stack_end;
	__u64 signals_of_fds;	/* bit number - 1 for each signal that a signalfd(2) reads */
	__u32 vmas;		/* numbers of what follows */
	__u32 timers;
	__u32 threads;
	__u32 extended_size;	/* of an extended state, in bytes: XSAVE's standard format */
	__u32 auxiliary_size;	/* of the auxiliary vector, in bytes; 0 of a program that leaves */
	__u32 path_size;	/* of the path, likewise */
	struct insula_lwk_running_action actions[INSULA_LWK_RUNNING_SIGNALS];
};

/* A VMA of the process, which is a base mapping at first. */
struct insula_lwk_running_vma {
	__u64 start;
	__u64 end;
	__u32 protection;	/* PROT_READ and so on */
	__u32 flags;		/* INSULA_LWK_RUNNING_* */
};

#define INSULA_LWK_RUNNING_SHARED	1
#define INSULA_LWK_RUNNING_DONT_FORK	2
#define INSULA_LWK_RUNNING_WIPE_ON_FORK	4
#define INSULA_LWK_RUNNING_DONT_DUMP	8
#define INSULA_LWK_RUNNING_LOCKED	16

/* A part of a VMA. */
struct insula_lwk_running_range {
	__u64 start;
	__u64 end;
};

/* A POSIX timer, which the base goes on to run. */
struct insula_lwk_running_timer {
	__u32 id;
	__u32 to_thread;	/* 1: it signals a single thread; else 0 */
};

/* A thread, whose thread of the proxy is attached to `slot`. */
struct insula_lwk_running_thread {
	__u64 id;
	__u64 slot;
	__u64 blocked;		/* bit number - 1 for each signal */
	__u64 rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp;
	__u64 r8, r9, r10, r11, r12, r13, r14, r15;
	__u64 rip;
	__u64 rflags;
	__u64 fs_base;
	__u64 gs_base;
	__u64 clear_child_tid;	/* as of set_tid_address(2); 0: none */
	__u64 robust_list;	/* as of set_robust_list(2); 0: none */
	__u64 robust_list_size;
	__u64 rseq;		/* as of rseq(2); 0: none */
	__u32 rseq_size;
	__u32 rseq_signature;
	__u64 stack_start;	/* as of sigaltstack(2) */
	__u64 stack_size;
	__u64 stack_flags;
	__u64 cpu_time_ns;	/* so far; 0 of a program that leaves */
	__s32 nice;
	__u32 policy;		/* as of sched_setscheduler(2) */
	__u32 priority;		/* likewise */
	__u32 reserved;		/* 0 */
};

#endif
