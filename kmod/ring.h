/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_RING_H
#define INSULA_RING_H

#include "insula_channel.h"

/*
 * The ends of rings for kernel code, the same as those of the crate `channel`; the
 * protocol is told in docs/src/channels.md. Each end has one user at a time.
 */
struct insula_ring_place {
	struct insula_ring *control;	/* in shared memory */
	struct insula_slot *slots;	/* the same */
	__u32 count;			/* of slots: a power of two, at most INSULA_SLOTS_MAX */
};

struct insula_producer {
	struct insula_ring_place ring;
	__u32 tail;
	__u32 head;	/* the consumer's, when last looked at */
};

struct insula_consumer {
	struct insula_ring_place ring;
	__u32 head;
};

/* What to send: references to pages, then bytes. */
struct insula_message {
	const struct insula_pages *pages;
	const void *bytes;
	__u16 bytes_size;
	__u8 pages_count;
	__u8 kind;
};

/* What was received: the buffer begins with the references to pages. */
struct insula_received {
	__u16 size;		/* references included */
	__u8 pages_count;
	__u8 kind;
};

/* The only producer, or consumer, of a ring that is clear. */
void insula_producer_init(struct insula_producer *producer, const struct insula_ring_place *ring);
void insula_consumer_init(struct insula_consumer *consumer, const struct insula_ring_place *ring);

/*
 * 1: sent, and the peer sleeps: ring it. 0: sent. -EAGAIN: no room now. -EMSGSIZE:
 * there will never be. -EPROTO: the peer wrote nonsense.
 */
int insula_send(struct insula_producer *producer, const struct insula_message *message);

/*
 * 1: received, and the peer sleeps: ring it. 0: received. -EAGAIN: there is nothing.
 * -EMSGSIZE: `capacity` is too small, the message stays. -EPROTO: the peer wrote nonsense.
 */
int insula_receive(struct insula_consumer *consumer, void *buffer, __u32 capacity,
		   struct insula_received *received);

/*
 * Before sleeping for want of room, or of a message: tell the peer that it is to ring.
 * 1: sleep until rung. 0: there is something to do. -EPROTO: the peer wrote nonsense.
 * After it in any case, and after the sleep: stay awake.
 */
int insula_producer_prepare_to_sleep(struct insula_producer *producer);
int insula_consumer_prepare_to_sleep(struct insula_consumer *consumer);
void insula_producer_stay_awake(struct insula_producer *producer);
void insula_consumer_stay_awake(struct insula_consumer *consumer);

#endif
