/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_PROCESS_FAULT_H
#define INSULA_PROCESS_FAULT_H

#include <linux/sched.h>
#include <linux/spinlock.h>

#include "insula_lwk.h"

struct insula_mirror;

/* A fault of a process, and then its result, until the page was looked up again. */
struct insula_process_fault {
	struct task_struct *task;	/* who raised it, for comparison only; NULL: none */
	u64 address;
	bool write;
	bool waiting;			/* for the answer */
	u64 sequence;
	unsigned int attempts;		/* consecutive ones for this page */
	int err;			/* of the last */
	unsigned long expires;		/* the entry is free from then on, in jiffies */
};

/* Faults on a program's memory by tasks without a syscall slot: this side of the entries. */
struct insula_process_faults {
	spinlock_t lock;		/* entry */
	struct insula_process_fault entry[INSULA_LWK_FAULTS];
};

void insula_process_faults_init(struct insula_process_faults *faults);

/*
 * 0 if the node may be asked to resolve a fault of the calling task. Else the result of the same
 * fault before, or -EIO after too many attempts.
 */
int insula_process_fault_may_raise(struct insula_mirror *mirror, u64 address, bool write);

/*
 * Raise a fault of the process, and wait up to `timeout_ms` for the node to resolve it. -EFAULT:
 * access denied. -ETIMEDOUT. -EPIPE: the node has ended. -EINTR: the caller is being killed.
 */
int insula_process_fault_raise(struct insula_mirror *mirror, u64 address, bool write,
			       unsigned int timeout_ms);

/*
 * The calling task has looked a page up: the node may unmap it, if it was that of the task's
 * last fault. `found`: it is mapped now, so the next fault is a new one.
 */
void insula_process_fault_looked_up(struct insula_mirror *mirror, u64 address, bool found);

#endif
