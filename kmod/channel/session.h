/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_SESSION_H
#define INSULA_SESSION_H

#include "insula_module.h"

struct insula_endpoint;

/* Ring the peer's doorbell, if it has one. In any context. */
void insula_session_ring(const struct insula_endpoint *endpoint);

/* Signal an event to the peer. In any context. */
void insula_session_signal(struct insula_endpoint *endpoint, u32 event);

/* Whether the peer has left the session, or has ended. */
bool insula_session_disconnected(const struct insula_endpoint *endpoint);

/* Whether the peer has left the session without having ended. */
bool insula_session_peer_left(const struct insula_endpoint *endpoint);

/*
 * Whether this node is a copy that has not joined a session of its own base yet: it was in one with
 * the original's.
 */
bool insula_session_moved(const struct insula_endpoint *endpoint);

/*
 * Begin a session, on the base, for the node to join. -EBUSY: the node is in an earlier one.
 * -EPIPE: it has ended. Lock held.
 */
int insula_session_begin(struct insula_endpoint *endpoint);

/* Whether the node has joined the base's session. */
bool insula_session_peer_joined(const struct insula_endpoint *endpoint);

/* Join the base's session, on a node, if there is a new one. */
bool insula_session_try_to_join(struct insula_endpoint *endpoint);

/*
 * Leave the session. Does nothing if the peer has ended: the memory may be reused by then. Lock
 * held.
 */
void insula_session_leave(struct insula_endpoint *endpoint);

#endif
