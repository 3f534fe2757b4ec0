/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_EVENTFD_H
#define INSULA_EVENTFD_H

#include <linux/spinlock.h>
#include <linux/types.h>

#include "insula_channel.h"
#include "insula_module.h"

/*
 * Events of an endpoint bound to eventfds, as KVM's ioeventfd and irqfd: without a thread in
 * between, an event signalled by the peer is written to an ioeventfd, and writing an irqfd
 * signals an event to the peer.
 */
struct insula_endpoint;
struct insula_eventfd;

/* Those of an endpoint. */
struct insula_eventfds {
	spinlock_t lock;		/* the table, against the doorbell's handler */
	struct insula_eventfd *of[INSULA_EVENTS];
};

void insula_eventfds_init(struct insula_endpoint *endpoint);

/*
 * INSULA_CHANNEL_EVENTFD. Replaces the event's binding, or removes it if both eventfds are -1.
 * Sleeps. One caller at a time.
 */
int insula_eventfds_bind(struct insula_endpoint *endpoint,
			 const struct insula_channel_eventfd *request);

/*
 * Whether a file of an ioeventfd is open: a back end that works in the peer's memory keeps the
 * ioeventfds by which it is kicked.
 */
bool insula_eventfds_in_use(struct insula_endpoint *endpoint);

/*
 * Stop signalling the peer, and drop the irqfds: one that is an ioeventfd, too, would otherwise
 * stay open forever. Sleeps. No more binding after this.
 */
void insula_eventfds_disable_irqfds(struct insula_endpoint *endpoint);

/* Remove all bindings. Sleeps. */
void insula_eventfds_clear(struct insula_endpoint *endpoint);

/* Write the ioeventfds of these events, which the peer has signalled. In interrupt. */
void insula_eventfds_signal(struct insula_endpoint *endpoint, u64 events);

#endif
