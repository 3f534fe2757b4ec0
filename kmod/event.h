/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_EVENT_H
#define INSULA_EVENT_H

#include <linux/spinlock.h>
#include <linux/types.h>

#include "insula_channel.h"
#include "insula_module.h"

/*
 * Events of a channel's end that are bound to eventfds, as KVM's ioeventfd and irqfd are:
 * what the peer signals is written to one, what is written to another is signalled to the
 * peer, and no thread is in between.
 */
struct insula_binding;

struct insula_bindings {
	/* Signal an event to the peer. In any context. */
	void (*signal)(struct insula_bindings *bindings, u32 event);
	/* Nobody has one of the eventfds any more that the peer signals. In any context. */
	void (*let_go)(struct insula_bindings *bindings);
	spinlock_t lock;		/* the table, against who is rung */
	struct insula_binding *of[INSULA_EVENTS];
};

/* The two calls have been set. */
void insula_bindings_init(struct insula_bindings *bindings);

/*
 * INSULA_CHANNEL_EVENT. Replaces the event's binding, if any; without a descriptor that is
 * all. Sleeps. One caller at a time.
 */
int insula_bindings_bind(struct insula_bindings *bindings,
			 const struct insula_channel_event *request);

/*
 * Whether somebody has an eventfd that the peer signals: a back end that works in the
 * peer's memory keeps those by which it is told of work.
 */
bool insula_bindings_held(struct insula_bindings *bindings);

/*
 * Signal nothing to the peer any more, and let go of what signals it: an eventfd may serve
 * both ways, and would be held for ever. Sleeps. Nobody binds any more.
 */
void insula_bindings_silence(struct insula_bindings *bindings);

/* Undo all of them. Sleeps. */
void insula_bindings_clear(struct insula_bindings *bindings);

/* The peer has signalled these. In interrupt. */
void insula_bindings_signalled(struct insula_bindings *bindings, u64 events);

#endif
