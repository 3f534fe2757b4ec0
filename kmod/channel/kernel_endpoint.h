/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_KERNEL_ENDPOINT_H
#define INSULA_KERNEL_ENDPOINT_H

#include "channel/ring.h"
#include "insula_module.h"

struct insula_area;
struct insula_channel;

/*
 * An endpoint of a channel used by the kernel itself, exclusively from claim to release. In a
 * session, messages are received by the consumer and sent by the producer.
 */
struct insula_kernel_endpoint {
	/* The doorbell was rung, and these events were signalled. In interrupt. */
	void (*rung)(struct insula_kernel_endpoint *endpoint, u64 events);
	struct insula_channel *channel;
	struct insula_producer producer;
	struct insula_consumer consumer;
	bool joined;
};

/* Claim it; `rung` is set. -ENOENT: no such channel. -EBUSY: a program has it open. */
int insula_endpoint_claim(struct insula_kernel_endpoint *endpoint, struct insula_area *area,
			  u32 index);

/* Disable its doorbell: on return rung() is not called any more. Sleeps. */
void insula_endpoint_disable(struct insula_kernel_endpoint *endpoint);

/* Leave the session, if any, and release it. After insula_endpoint_disable(). */
void insula_endpoint_release(struct insula_kernel_endpoint *endpoint);

/*
 * In the base: begin a session for the node to join, then attach to its rings, in which
 * messages may arrive from then on. -EBUSY: the node is in an earlier session. -EPIPE: it has
 * ended. With the endpoint locked: that is the channel's lock, see the lock order in main.c.
 */
void insula_endpoint_lock(struct insula_kernel_endpoint *endpoint);
void insula_endpoint_unlock(struct insula_kernel_endpoint *endpoint);
int insula_endpoint_begin(struct insula_kernel_endpoint *endpoint);
void insula_endpoint_use(struct insula_kernel_endpoint *endpoint);

/* Whether the node is in the session; whether it has left it without having ended. */
bool insula_endpoint_peer_joined(const struct insula_kernel_endpoint *endpoint);
bool insula_endpoint_peer_left(const struct insula_kernel_endpoint *endpoint);

/* In a node: join the base's session, if there is a new one. */
bool insula_endpoint_join(struct insula_kernel_endpoint *endpoint);
void insula_endpoint_leave(struct insula_kernel_endpoint *endpoint);

/*
 * In a node, whenever rung: join a new session if there is one, and handle its messages.
 * `handle_next` receives and handles one: -EAGAIN if there is none, any other error to leave
 * the session. Leaves it on an error, or when the base has left, after `before_leave` (if any).
 * By one thread at a time.
 */
void insula_endpoint_serve(struct insula_kernel_endpoint *endpoint, int (*handle_next)(void),
			   void (*before_leave)(void));

/* Like insula_send() and insula_receive(), but ring a sleeping peer: 0 or an error. */
int insula_endpoint_send(struct insula_kernel_endpoint *endpoint,
			 const struct insula_message *message);
int insula_endpoint_receive(struct insula_kernel_endpoint *endpoint, void *buffer, u32 capacity,
			    struct insula_received *received);

/* Whether the peer has left the session, or has ended. */
bool insula_endpoint_disconnected(const struct insula_kernel_endpoint *endpoint);

/* Signal an event to the peer. In any context. */
void insula_endpoint_signal(const struct insula_kernel_endpoint *endpoint, u32 event);

#endif
