/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_SEAT_H
#define INSULA_SEAT_H

#include <linux/sched.h>
#include <linux/spinlock.h>
#include <linux/wait.h>

#include "insula_lwk.h"

struct insula_desks;

/* A page that the node was asked for. Only the thread that sits there has to do with it. */
struct insula_asked {
	u64 address;
	bool write;
	u64 turn;		/* the node's last when there was an answer, or none in time */
	unsigned int times;	/* in a row */
	int err;		/* the page is not to be had */
};

/* A desk, as this side sees it. */
struct insula_seat {
	struct insula_desks *desks;
	struct insula_lwk_desk *shared;
	u32 index;
	bool taken;		/* under the lock of `desks` */
	spinlock_t lock;	/* task, break_off; taken in interrupt */
	struct task_struct *task;	/* that sits there, referenced; or NULL */
	bool break_off;		/* what whoever sits down will find to do; under `lock` */
	wait_queue_head_t waiting;
	struct insula_asked asked;
};

void insula_seat_init(struct insula_seat *seat, struct insula_desks *desks,
		      struct insula_lwk_desk *shared, u32 index);

/* Have it look again. In interrupt. */
void insula_seat_wake(struct insula_seat *seat);
/* The same when the node is gone: who writes to its desk has finished, or sees that. */
void insula_seat_wake_for_good(struct insula_seat *seat);

/*
 * Have its call broken off. A new thread of the node's may be told so before the proxy's
 * has sat down. In interrupt.
 */
void insula_seat_break_off(struct insula_seat *seat);

/* Nobody sits there any more, and it is free. Under the lock of its desks. */
void insula_seat_clear(struct insula_seat *seat);

/* The caller sits there from now on. -EBUSY if somebody does. */
int insula_seat_sit(struct insula_seat *seat);

/* Wait for the node's next turn. -EPIPE: the node is no more. -EINTR: a signal came. */
int insula_seat_wait(struct insula_seat *seat);

/* Wake the node's thread if it sleeps, after an answer. */
void insula_seat_ring(struct insula_seat *seat);

/*
 * Whether the node is still to be asked for a page, in the call that it has this thread make.
 * If not, why: what insula_seat_ask() answered, or -EIO if it was asked in vain too often.
 */
int insula_seat_may_ask(const struct insula_seat *seat, u64 address, bool write);

/*
 * In the middle of a call: have the node make a page of its program present, and wait, no
 * longer than `limit_ms`. -EFAULT: the program may not do that there. -ETIMEDOUT. -EPIPE:
 * the node is no more. -EINTR: the caller is to end. -EIO: the node's thread does not wait,
 * or said something else.
 */
int insula_seat_ask(struct insula_seat *seat, u64 address, bool write, unsigned int limit_ms);

#endif
