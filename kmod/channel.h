/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_CHANNEL_END_H
#define INSULA_CHANNEL_END_H

#include <linux/fs.h>
#include <linux/rcupdate.h>

#include "insula_channel.h"
#include "insula_module.h"
#include "ring.h"

/*
 * The channels between the base and one node, seen from either side. Descriptors of
 * ends hold them, so they outlive who made them.
 */
struct insula_area;

/* The cores that a node's doorbells may name. */
struct insula_ringable {
	struct rcu_head rcu;
	u32 count;
	u32 apic_ids[];
};

/* What an area is made of. */
struct insula_area_place {
	phys_addr_t start;
	void *memory;		/* the same, mapped */
	u32 count;
	u32 slots;
	struct file *keeper;	/* memory object, held as long as it is in use, or NULL */
};

int insula_channels_init(void);
void insula_channels_exit(void);

/* 0 if an area can have that many channels of that many slots, else -EINVAL. */
int insula_area_check(u32 count, u32 slots);

/*
 * The base's side: write what is in the area to its first page. Takes the cores that may
 * be rung over, on success only. ERR_PTR(-ENOMEM).
 */
struct insula_area *insula_area_create(const struct insula_area_place *place,
				       struct insula_ringable *ringable);

/* Other cores may be rung from now on. Takes them over. One caller at a time. */
void insula_area_change(struct insula_area *area, struct insula_ringable *ringable);

/* The node's side. ERR_PTR(-ENOMEM). */
struct insula_area *insula_area_join(const struct insula_area_place *place);

/* The other side is gone for good: its memory is touched no more. NULL is none. */
void insula_area_hang_up(struct insula_area *area);
void insula_area_get(struct insula_area *area);
void insula_area_put(struct insula_area *area);

/* In the base: the cores of the node, at most so many of them; how many. */
u32 insula_area_cores(const struct insula_area *area, u32 *apic_ids, u32 capacity);

/*
 * An end of a channel that this kernel uses itself: nobody else has it from claim to
 * release. Once it is in a session, messages come by the consumer and go by the producer.
 */
struct insula_own_end {
	/* In interrupt: there may be something to do, and these events were signalled. */
	void (*rung)(struct insula_own_end *end, u64 events);
	struct insula_channel *channel;
	struct insula_producer producer;
	struct insula_consumer consumer;
	bool joined;
};

/* `rung` has been set. -ENOENT: there is no such channel. -EBUSY: a program has it open. */
int insula_own_end_claim(struct insula_own_end *end, struct insula_area *area, u32 index);

/* When this returns, rung() is called no more. Sleeps. */
void insula_own_end_silence(struct insula_own_end *end);

/* Leave the session, if any; once it has been silenced, and is used no more. */
void insula_own_end_release(struct insula_own_end *end);

/*
 * In the base: begin a session for the node to join, then use its rings: from here on
 * there may be something in them. -EBUSY: the node is in an old one. -EPIPE: it has ended.
 */
int insula_own_end_begin(struct insula_own_end *end);
void insula_own_end_use(struct insula_own_end *end);

/* Whether the node has joined the session and is in it; whether it has left it alive. */
bool insula_own_end_answered(const struct insula_own_end *end);
bool insula_own_end_left(const struct insula_own_end *end);

/* In a node: join the base's session, if there is one that it has not joined before. */
bool insula_own_end_join(struct insula_own_end *end);
void insula_own_end_leave(struct insula_own_end *end);

/* Whether the other side has left the session, or has ended. */
bool insula_own_end_hung_up(const struct insula_own_end *end);
void insula_own_end_ring(const struct insula_own_end *end);

/* Signal an event to the base. In any context. */
void insula_own_end_signal(const struct insula_own_end *end, u32 event);

/* INSULA_CHANNEL_OPEN, its argument in user space: answers a descriptor. */
int insula_channel_open(struct insula_area *area, void __user *argument);

#endif
