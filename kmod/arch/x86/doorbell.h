/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_DOORBELL_H
#define INSULA_DOORBELL_H

#include <linux/rcupdate.h>
#include <linux/timer.h>
#include <linux/types.h>

/* An interrupt of ours that another kernel sends. */
struct insula_doorbell {
	/* It has been rung, perhaps for nothing. In interrupt. */
	void (*rung)(struct insula_doorbell *doorbell);
	unsigned int irq;
	u64 *place;		/* where its word is published, or NULL */
	struct timer_list echo;
};

/* The cores of another kernel that its doorbells may name. */
struct insula_ringable {
	struct rcu_head rcu;
	u32 count;
	u32 apic_ids[];
};

int insula_doorbells_init(void);
void insula_doorbells_exit(void);

/* Allocate its interrupt; `rung` has been set. It is published nowhere yet. Sleeps. */
int insula_doorbell_create(struct insula_doorbell *doorbell);

/* Free it. Nobody rings it any more. Sleeps. */
void insula_doorbell_destroy(struct insula_doorbell *doorbell);

/* Keep its word at `place` up to date from now on, or no more if NULL. */
void insula_doorbell_publish(struct insula_doorbell *doorbell, u64 *place);

/*
 * Ring the doorbell that another kernel publishes at `place`, if it names one of `ringable`
 * (NULL: any core). Nothing that the other kernel writes there makes this take long. In any
 * context, in an RCU read-side critical section: cores are not given away meanwhile
 * (insula_cores_give()).
 */
void insula_doorbell_ring(const u64 *place, const struct insula_ringable *ringable);

#endif
