/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_RING_H
#define INSULA_RING_H

#include "insula_channel.h"

/*
 * Producer and consumer of rings for kernel code; the crate `channel` has those for Rust.
 * Protocol: docs/src/channels.md. Each has one user at a time.
 */
struct insula_ring_place {
	struct insula_ring *control;	/* in shared memory */
	struct insula_slot *slots;	/* in shared memory */
	__u32 count;			/* of slots: a power of two, at most INSULA_SLOTS_MAX */
};

struct insula_producer {
	struct insula_ring_place ring;
	__u32 tail;
	__u32 head;	/* the consumer's, when last read */
};

struct insula_consumer {
	struct insula_ring_place ring;
	__u32 head;
};

/* A message to send: page references, then bytes. */
struct insula_message {
	const struct insula_pages *pages;
	const void *bytes;
	__u16 bytes_size;
	__u8 pages_count;
	__u8 kind;
};

/* A received message: its buffer starts with the page references. */
struct insula_received {
	__u16 size;		/* references included */
	__u8 pages_count;
	__u8 kind;
};

/* Initialize the only producer, or consumer, of a cleared ring. */
void insula_producer_init(struct insula_producer *producer, const struct insula_ring_place *ring);
void insula_consumer_init(struct insula_consumer *consumer, const struct insula_ring_place *ring);

/*
 * 1: sent, and the peer sleeps: ring its doorbell. 0: sent. -EAGAIN: no room. -EMSGSIZE: too
 * long for the ring. -EPROTO: the peer violated the protocol.
 */
int insula_send(struct insula_producer *producer, const struct insula_message *message);

/*
 * 1: received, and the peer sleeps: ring its doorbell. 0: received. -EAGAIN: no message.
 * -EMSGSIZE: `capacity` is too small, the message stays. -EPROTO: the peer violated the
 * protocol.
 */
int insula_receive(struct insula_consumer *consumer, void *buffer, __u32 capacity,
		   struct insula_received *received);

/*
 * Before waiting for room, or for a message: ask the peer to ring. 1: sleep until rung. 0: do
 * not sleep, the wait is over. -EPROTO: the peer violated the protocol. In any case, and after
 * the sleep, call stay_awake().
 */
int insula_producer_prepare_to_sleep(struct insula_producer *producer);
int insula_consumer_prepare_to_sleep(struct insula_consumer *consumer);
void insula_producer_stay_awake(struct insula_producer *producer);
void insula_consumer_stay_awake(struct insula_consumer *consumer);

#endif
