/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_SESSION_H
#define INSULA_SESSION_H

#include <linux/kref.h>
#include <linux/mutex.h>
#include <linux/rwsem.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "arch/x86/doorbell.h"
#include "channel/channel.h"
#include "channel/eventfd.h"
#include "insula_channel.h"
#include "insula_module.h"

struct insula_kernel_endpoint;

/*
 * This side's state of a channel, for implementations of endpoints only: descriptors
 * (channel.c), and those used by this kernel (kernel_endpoint.c).
 */
struct insula_channel {
	struct insula_area *area;
	struct insula_endpoint *own, *peer;	/* in shared memory */
	u64 *events_in, *events_out;	/* in shared memory: pending events to us and to the peer */
	struct insula_eventfds eventfds;
	void *rings;			/* in shared memory */
	phys_addr_t rings_start;
	struct mutex lock;		/* opening and closing */
	bool open;
	struct address_space *mapping;	/* the open descriptor's; the area's `mapping` */
	bool closing;			/* close when no back end uses its eventfds any more */
	struct work_struct close;
	bool has_doorbell;
	u64 session;			/* the last one joined */
	struct insula_doorbell doorbell;
	struct insula_kernel_endpoint *user;	/* is rung instead of the descriptor, or NULL */
	atomic64_t rings_count;		/* since last read */
	wait_queue_head_t waitqueue;
};

struct insula_area {
	struct kref refs;		/* its creator's, and of open endpoints */
	struct insula_area_place place;
	bool base;			/* this side is the base */
	bool disconnected;		/* the other side has ended */
	struct rw_semaphore mapping;	/* read: map a page of rings; write: unmap all */
	struct page *scratch;		/* NULL, or mapped instead of rings */
	struct insula_ringable __rcu *ringable;	/* NULL: any core may be rung */
	struct insula_channel channels[];
};

/* Ring the peer's doorbell, if it has one. In any context. */
void insula_session_ring(const struct insula_channel *channel);

/* Signal an event to the peer. In any context. */
void insula_session_signal(struct insula_channel *channel, u32 event);

/* Whether the peer has left the session, or has ended. */
bool insula_session_disconnected(const struct insula_channel *channel);

/* Begin a session, on the base. -EBUSY: the node is in an earlier one. Lock held. */
int insula_session_begin(struct insula_channel *channel);

/* Whether the node has joined the base's session. */
bool insula_session_peer_joined(const struct insula_channel *channel);

/* Join the base's session, on a node, if there is a new one. */
bool insula_session_try_to_join(struct insula_channel *channel);

/*
 * Leave the session. Does nothing if the peer has ended: the memory may be reused by then. Lock
 * held.
 */
void insula_session_leave(struct insula_channel *channel);

#endif
