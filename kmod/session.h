/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_SESSION_H
#define INSULA_SESSION_H

#include <linux/kref.h>
#include <linux/mutex.h>
#include <linux/rwsem.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "arch/x86/doorbell.h"
#include "channel.h"
#include "event.h"
#include "insula_channel.h"
#include "insula_module.h"

struct insula_own_end;

/*
 * Channels as their ends on this side see them, for these ends only: descriptors
 * (channel.c), and what this kernel uses itself (own_end.c).
 */
struct insula_channel {
	struct insula_area *area;
	struct insula_end *own, *peer;	/* in shared memory */
	u64 *signalled, *signals;	/* the same: events to us, and to the peer */
	struct insula_bindings bindings;	/* of events */
	void *rings;			/* the same */
	phys_addr_t rings_start;
	struct mutex lock;		/* opening and closing */
	bool open;
	struct address_space *mapping;	/* the open descriptor's: see the area's `mapping` */
	bool closing;			/* as soon as no back end works on its events */
	struct work_struct close;
	bool audible;			/* it has its doorbell */
	u64 session;			/* the last one that it was in */
	struct insula_doorbell doorbell;
	struct insula_own_end *user;	/* who is rung instead of a descriptor's holder */
	atomic64_t rung;		/* times, since last read */
	wait_queue_head_t waiting;
};

struct insula_area {
	struct kref refs;		/* who made it, and open ends */
	struct insula_area_place place;
	bool base;			/* which side we are */
	bool gone;			/* the other is no more */
	/*
	 * Held for reading while a page of rings is mapped: all that have been mapped are found
	 * by those who hold it for writing.
	 */
	struct rw_semaphore mapping;
	struct page *scratch;		/* NULL, or what is mapped instead of rings */
	struct insula_ringable __rcu *ringable;	/* NULL: any */
	struct insula_channel channels[];
};

/* Ring the peer, if it can be rung. In any context. */
void insula_session_ring(const struct insula_channel *channel);

/* Signal an event to the peer. In any context. */
void insula_session_signal(struct insula_channel *channel, u32 event);

/* Whether the other side has left the session, or lives no more. */
bool insula_session_hung_up(const struct insula_channel *channel);

/* A new session, on the base. -EBUSY: the node is in an old one. Lock held. */
int insula_session_begin(struct insula_channel *channel);

/* Whether the node is in the session that the base has begun. */
bool insula_session_answered(const struct insula_channel *channel);

/* Join the base's session, on a node, if there is one that was not joined before. */
bool insula_session_try_to_join(struct insula_channel *channel);

/*
 * Leave the session, if the other side lives: without it, the memory may be in use for
 * something else. Lock held.
 */
void insula_session_leave(struct insula_channel *channel);

#endif
