/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_SLOT_H
#define INSULA_SLOT_H

#include <linux/sched.h>
#include <linux/spinlock.h>
#include <linux/wait.h>

#include "insula_lwk.h"

struct insula_slots;

/* The last remote fault of a slot. Used by the attached thread only. */
struct insula_remote_fault {
	u64 address;
	bool write;
	u64 sequence;		/* the node's last entry when it was resolved or timed out */
	unsigned int attempts;	/* consecutive ones; 0: its page was found */
	int err;		/* of the last attempt */
};

/* This side's state of a syscall slot. */
struct insula_syscall_slot {
	struct insula_slots *slots;
	struct insula_lwk_syscall_slot *shared;
	u32 index;
	bool taken;		/* under the lock of `slots` */
	spinlock_t lock;	/* task, cancel; taken in interrupt */
	struct task_struct *task;	/* attached thread, referenced; or NULL */
	bool cancel;		/* cancel the call of the next thread to attach; `lock` */
	wait_queue_head_t waitqueue;
	struct insula_remote_fault fault;
};

void insula_slot_init(struct insula_syscall_slot *slot, struct insula_slots *slots,
		      struct insula_lwk_syscall_slot *shared, u32 index);

/* Wake its waiter. In interrupt. */
void insula_slot_wake(struct insula_syscall_slot *slot);
/* The same after the node has ended: waits for writers to the slot to finish. */
void insula_slot_disconnect(struct insula_syscall_slot *slot);

/*
 * Cancel its call, by a signal to its thread. May come before a new proxy thread has attached.
 * In interrupt.
 */
void insula_slot_cancel(struct insula_syscall_slot *slot);

/* Detach its thread and mark it free. Under the lock of its slots. */
void insula_slot_clear(struct insula_syscall_slot *slot);

/* Attach the calling thread. -EBUSY if one is attached. */
int insula_slot_attach(struct insula_syscall_slot *slot);

/* Wait for the node's next entry. -EPIPE: the node has ended. -EINTR: a signal came. */
int insula_slot_wait(struct insula_syscall_slot *slot);

/* Wake the node's thread if it sleeps, after answering. */
void insula_slot_ring(struct insula_syscall_slot *slot);

/*
 * 0 if the node may be asked to resolve a fault during the current call. Else the result of
 * the same fault before, or -EIO after too many attempts.
 */
int insula_slot_may_fault(const struct insula_syscall_slot *slot, u64 address, bool write);

/*
 * Raise a remote fault during a call, and wait up to `timeout_ms` for the node to resolve it.
 * -EFAULT: access denied. -ETIMEDOUT. -EPIPE: the node has ended. -EINTR: the caller is being
 * killed. -EIO: no call is posted, or the node posted something else.
 */
int insula_slot_fault(struct insula_syscall_slot *slot, u64 address, bool write,
		      unsigned int timeout_ms);

/*
 * The attached thread has looked a page up, after its last remote fault: the node may unmap the
 * fault's page. `found`: it is mapped now, so the next fault is a new one.
 */
void insula_slot_looked_up(struct insula_syscall_slot *slot, bool found);

#endif
