/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_OWN_END_H
#define INSULA_OWN_END_H

#include "insula_module.h"
#include "ring.h"

struct insula_area;
struct insula_channel;

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
 * With the end locked: its lock is that of all ends, so it comes before others (main.c).
 */
void insula_own_end_lock(struct insula_own_end *end);
void insula_own_end_unlock(struct insula_own_end *end);
int insula_own_end_begin(struct insula_own_end *end);
void insula_own_end_use(struct insula_own_end *end);

/* Whether the node has joined the session and is in it; whether it has left it alive. */
bool insula_own_end_answered(const struct insula_own_end *end);
bool insula_own_end_left(const struct insula_own_end *end);

/* In a node: join the base's session, if there is one that it has not joined before. */
bool insula_own_end_join(struct insula_own_end *end);
void insula_own_end_leave(struct insula_own_end *end);

/*
 * In a node, whenever rung: join a session if there is one, and obey what the base says.
 * `obey` receives a message and does what it says: -EAGAIN if there is none, any other
 * error if there is no talking with the base. Then, or when the base has left, `before`
 * (if any) and the session's end. By one thread at a time.
 */
void insula_own_end_serve(struct insula_own_end *end, int (*obey)(void), void (*before)(void));

/* As insula_send() and insula_receive(), but a peer that sleeps is rung: 0 or an error. */
int insula_own_end_send(struct insula_own_end *end, const struct insula_message *message);
int insula_own_end_receive(struct insula_own_end *end, void *buffer, u32 capacity,
			   struct insula_received *received);

/* Whether the other side has left the session, or has ended. */
bool insula_own_end_hung_up(const struct insula_own_end *end);

/* Signal an event to the peer. In any context. */
void insula_own_end_signal(const struct insula_own_end *end, u32 event);

#endif
