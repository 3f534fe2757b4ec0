/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_LENDING_H
#define INSULA_LENDING_H

#include "insula_channel.h"
#include "insula_frames.h"
#include "insula_module.h"

struct insula_area;

/*
 * All that is lent to a node in one life of it, by whomever: what the base has told the
 * node of it, and when the node has ceased to use it. Whoever reclaims memory may wait
 * here, so nothing is allocated with the lock held, nor in the calls but create().
 */
struct insula_lending;

/* ERR_PTR(-EBUSY): a program has the channel that is needed. -ENOENT: there is none. */
struct insula_lending *insula_lending_create(struct insula_area *area);
void insula_lending_get(struct insula_lending *lending);
void insula_lending_put(struct insula_lending *lending);

/* A number for a lender that nobody else has. */
u32 insula_lending_number(struct insula_lending *lending);

/* Wait for the node to listen. -ENOTCONN: it does not. -EPIPE: it has ended. -EINTR. */
int insula_lending_connect(struct insula_lending *lending);

/* What has been told and what lies with the node stay one as long as this is held. */
void insula_lending_lock(struct insula_lending *lending);
bool insula_lending_trylock(struct insula_lending *lending);
void insula_lending_unlock(struct insula_lending *lending);
void insula_lending_assert_locked(const struct insula_lending *lending);

/* Tell it. Lock held. -EAGAIN: not now. -EPIPE: it has ended. -EPROTO: it writes nonsense. */
int insula_lending_grant(struct insula_lending *lending, const struct insula_frames *frames,
			 const struct insula_pages *pages, u8 pages_count);

/*
 * Take a range back and wait until the node has ceased to use it, so long and no longer.
 * -ETIMEDOUT: it had to be stopped. -EIO: even that failed, and it may go on using the
 * range for ever. Never with the lock held.
 */
int insula_lending_take(struct insula_lending *lending, const struct insula_frames *frames,
			u32 patience_ms);

/*
 * The node's cores execute nothing any more; if `lost`, one may. Between this and the
 * reset of these cores by whoever calls, they are the node's. NULL is none.
 */
void insula_lending_end(struct insula_lending *lending, bool lost);

#endif
