/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_DOORBELL_H
#define INSULA_DOORBELL_H

#include <linux/rcupdate.h>
#include <linux/timer.h>
#include <linux/types.h>

/* An interrupt of this kernel that another kernel sends. */
struct insula_doorbell {
	/* It was rung; may be spurious. In interrupt. */
	void (*rung)(struct insula_doorbell *doorbell);
	unsigned int irq;
	u64 *place;		/* where its word is published, or NULL */
	u64 *permit;		/* where a monitor looks it up, or NULL; set before publishing */
	u64 mark;		/* added to its word: INSULA_DOORBELL_FOREIGN, or 0; set before */
	struct timer_list echo;
};

/* The cores of another kernel that its doorbells may name. */
struct insula_ringable {
	struct rcu_head rcu;
	u32 count;
	u32 apic_ids[];		/* theirs, perhaps with INSULA_MONITOR_SHARE_ID (monitor_share.h),
				 * then as many by which that kernel knows them
				 */
};

int insula_doorbells_init(void);
void insula_doorbells_exit(void);

/* Allocate its interrupt; `rung` is set. Not published yet. Sleeps. */
int insula_doorbell_create(struct insula_doorbell *doorbell);

/*
 * Have it interrupt one core for good, which must not go offline. Returns its vector there, or an
 * error. Sleeps.
 */
int insula_doorbell_pin(struct insula_doorbell *doorbell, u32 cpu);

/* Have it never interrupt one core, nor be moved but by hotplug. Sleeps. */
int insula_doorbell_keep_off(struct insula_doorbell *doorbell, u32 cpu);

/* Unpublish and free it: on return rung() is not called any more. Sleeps. */
void insula_doorbell_destroy(struct insula_doorbell *doorbell);

/* Publish its word at `place` and keep it up to date; NULL: unpublish. */
void insula_doorbell_publish(struct insula_doorbell *doorbell, u64 *place);

/*
 * Ring the doorbell that another kernel publishes at `place`, if its target is in `ringable`
 * (NULL: any core). Bounded in time, whatever the other kernel writes there. In any context,
 * inside an RCU read-side critical section: cores are not returned meanwhile
 * (insula_cores_give()).
 */
void insula_doorbell_ring(const u64 *place, const struct insula_ringable *ringable);

#endif
