/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_GRANT_CHANNEL_H
#define INSULA_GRANT_CHANNEL_H

#include "insula_channel.h"
#include "insula_grant.h"
#include "insula_module.h"

struct insula_area;
struct insula_nested_table;

/*
 * The base's side of all grants to a node during one run of it: grants sent, and revocations
 * confirmed. Memory reclaim may wait here, so nothing is allocated with the lock held, nor in
 * any function but create().
 */
struct insula_grant_channel;

/*
 * `nested`: of a confined node, or NULL. ERR_PTR(-EBUSY): a program has the channel open. -ENOENT:
 * the node has no such channel.
 */
struct insula_grant_channel *insula_grant_channel_create(struct insula_area *area,
							 struct insula_nested_table *nested);
struct insula_nested_table *insula_grant_channel_nested(const struct insula_grant_channel *channel);
void insula_grant_channel_get(struct insula_grant_channel *channel);
void insula_grant_channel_put(struct insula_grant_channel *channel);

/* A unique id for a grant table. */
u32 insula_grant_channel_new_id(struct insula_grant_channel *channel);

/* Wait for the node to join the session. -ENOTCONN: it does not. -EPIPE: it ended. -EINTR. */
int insula_grant_channel_connect(struct insula_grant_channel *channel);

/* Serializes grants sent with changes of the granted memory. */
void insula_grant_channel_lock(struct insula_grant_channel *channel);
bool insula_grant_channel_trylock(struct insula_grant_channel *channel);
void insula_grant_channel_unlock(struct insula_grant_channel *channel);
void insula_grant_channel_assert_locked(const struct insula_grant_channel *channel);

/* Send a grant. Lock held. -EAGAIN: ring full. -EPIPE: node ended. -EPROTO: protocol error. */
int insula_grant_channel_grant(struct insula_grant_channel *channel,
			       const struct insula_grant_message *body,
			       const struct insula_pages *pages, u8 pages_count);

/*
 * Revoke a range and wait until the node no longer uses it. -ETIMEDOUT: the node had to be
 * stopped. -EIO: even that failed, it may use the range forever. Lock not held.
 */
int insula_grant_channel_revoke(struct insula_grant_channel *channel,
				const struct insula_grant_message *body,
				u32 timeout_ms);

/*
 * The node's cores have been stopped; with `lost` one may still execute. Until this call its
 * cores must not be reused. NULL is allowed.
 */
void insula_grant_channel_end(struct insula_grant_channel *channel, bool lost);

#endif
