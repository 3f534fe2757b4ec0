/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_ENDPOINT_H
#define INSULA_ENDPOINT_H

#include <linux/atomic.h>
#include <linux/mutex.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "arch/x86/doorbell.h"
#include "channel/eventfd.h"
#include "channel/ring.h"
#include "insula_channel.h"
#include "insula_module.h"

struct insula_area;

/*
 * This kernel's endpoint of a channel. It has one user at a time: a descriptor
 * (endpoint_file.c), or a part of this kernel, from claim to release.
 */
struct insula_endpoint {
	struct insula_area *area;
	struct insula_endpoint_state *own, *peer;	/* in shared memory */
	u64 *events_in, *events_out;	/* in shared memory: pending events to us and to the peer */
	void *rings;			/* in shared memory; NULL: not mapped yet */
	phys_addr_t rings_start;
	struct mutex lock;		/* opening and closing */
	bool open;			/* it has a user */
	u64 session;			/* the last one joined */
	bool has_doorbell;
	struct insula_doorbell doorbell;
	void (*rung)(struct insula_endpoint *endpoint, u64 events);	/* or NULL */
	atomic64_t rings_count;		/* of a descriptor: since last read */
	wait_queue_head_t waitqueue;	/* woken when rung, and when the other side has ended */

	/* Of a kernel, in a session: */
	bool joined;
	struct insula_consumer consumer;
	struct insula_producer producer;

	/* Of a descriptor: */
	struct insula_eventfds eventfds;
	struct address_space *mapping;	/* the area's `mapping` */
	bool closing;			/* close when no back end uses its eventfds any more */
	struct work_struct close;
};

/* Initialize the endpoint of channel number `index`, whose first page is `shared`. */
void insula_endpoint_init(struct insula_endpoint *endpoint, struct insula_area *area, u32 index,
			  struct insula_endpoints *shared);

/*
 * Map the rings, before the endpoint is claimed: of a copy of a node they become its own only when
 * its channel is used. -ENOMEM. No lock held. Sleeps.
 */
int insula_endpoint_map_rings(struct insula_endpoint *endpoint);

/* Frame of a page of the rings, which are mapped. */
unsigned long insula_endpoint_rings_frame(const struct insula_endpoint *endpoint,
					  unsigned long page);

/*
 * Claim an endpoint, whose doorbell is not published yet. -EBUSY: it has a user. -EPIPE: the
 * other side has ended. Lock held. Sleeps.
 */
int insula_endpoint_claim(struct insula_endpoint *endpoint);

/* Leave the session, and release the endpoint. Sleeps. */
void insula_endpoint_release(struct insula_endpoint *endpoint);

/*
 * The rest is for endpoints used by this kernel itself.
 *
 * Claim the endpoint of channel number `index`. ERR_PTR(-ENOENT): no such channel; or an error
 * of insula_endpoint_claim().
 */
struct insula_endpoint *insula_endpoint_open(struct insula_area *area, u32 index);

/*
 * Publish its doorbell: when it is rung, rung() is called in interrupt with the events that were
 * signalled, unless it is NULL. Disable it: on return rung() is not called any more. Sleep.
 */
void insula_endpoint_enable(struct insula_endpoint *endpoint,
			    void (*rung)(struct insula_endpoint *endpoint, u64 events));
void insula_endpoint_disable(struct insula_endpoint *endpoint);

/* Attach to the rings of a session that was begun or joined. */
void insula_endpoint_use(struct insula_endpoint *endpoint);

/* In a node: join the base's session, if there is a new one; leave it. */
bool insula_endpoint_join(struct insula_endpoint *endpoint);
void insula_endpoint_leave(struct insula_endpoint *endpoint);

/*
 * In a node, whenever rung: join a new session if there is one, and handle its messages.
 * `handle_next` receives and handles one: -EAGAIN if there is none, any other error to leave
 * the session. Leaves it on an error, or when the base has left, after `before_leave` (if any).
 * By one thread at a time.
 */
void insula_endpoint_serve(struct insula_endpoint *endpoint, int (*handle_next)(void),
			   void (*before_leave)(void));

/* Like insula_send() and insula_receive(), but ring a sleeping peer: 0 or an error. */
int insula_endpoint_send(struct insula_endpoint *endpoint, const struct insula_message *message);
int insula_endpoint_receive(struct insula_endpoint *endpoint, void *buffer, u32 capacity,
			    struct insula_received *received);

#endif
