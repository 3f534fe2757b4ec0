// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sessions of channels: the words of both endpoints in shared memory. Each side writes its own
 * endpoint and does not trust the other. Protocol: docs/src/channels.md; layout:
 * insula_channel.h.
 */
#include "channel/session.h"

#include <linux/export.h>
#include <linux/rcupdate.h>
#include <linux/string.h>

#include "channel/area.h"
#include "channel/endpoint.h"

void insula_session_ring(const struct insula_endpoint *endpoint)
{
	const struct insula_area *area = endpoint->area;

	rcu_read_lock();
	if (!READ_ONCE(area->disconnected))
		insula_doorbell_ring(&endpoint->peer->doorbell, rcu_dereference(area->ringable));
	rcu_read_unlock();
}

void insula_session_signal(struct insula_endpoint *endpoint, u32 event)
{
	/* Its memory may be reused. */
	if (READ_ONCE(endpoint->area->disconnected))
		return;
	/* If events were pending already, the doorbell was rung for them. */
	if (!atomic64_fetch_or(BIT_ULL(event), (atomic64_t *)endpoint->events_out))
		insula_session_ring(endpoint);
}
EXPORT_SYMBOL_GPL(insula_session_signal);

bool insula_session_disconnected(const struct insula_endpoint *endpoint)
{
	u64 session = smp_load_acquire(&endpoint->peer->session); /* before `open` */
	u64 own = READ_ONCE(endpoint->session);
	bool open = READ_ONCE(endpoint->peer->open);

	if (READ_ONCE(endpoint->area->disconnected))
		return true;
	/* A node that has not joined the base's session yet has not left it. */
	if (endpoint->area->base)
		return session == own && !open;
	return session != own || !open;
}
EXPORT_SYMBOL_GPL(insula_session_disconnected);

bool insula_session_peer_left(const struct insula_endpoint *endpoint)
{
	return !READ_ONCE(endpoint->area->disconnected) && insula_session_disconnected(endpoint);
}

bool insula_session_moved(const struct insula_endpoint *endpoint)
{
	return READ_ONCE(endpoint->peer->doorbell) == INSULA_DOORBELL_FOREIGN;
}
EXPORT_SYMBOL_GPL(insula_session_moved);

int insula_session_begin(struct insula_endpoint *endpoint)
{
	lockdep_assert_held(&endpoint->lock);
	if (READ_ONCE(endpoint->area->disconnected))
		return -EPIPE;
	WRITE_ONCE(endpoint->session, endpoint->session + 1);
	WRITE_ONCE(endpoint->own->session, endpoint->session);
	smp_mb(); /* either a node joining now sees this session, or we see its `open` */
	if (READ_ONCE(endpoint->peer->open)) {
		insula_session_ring(endpoint); /* a copy has not seen yet that it is to leave */
		return -EBUSY;
	}
	memset(endpoint->rings, 0, INSULA_RINGS_SIZE(endpoint->area->place.slots));
	WRITE_ONCE(*endpoint->events_in, 0);
	WRITE_ONCE(*endpoint->events_out, 0);
	insula_doorbell_publish(&endpoint->doorbell, &endpoint->own->doorbell);
	smp_store_release(&endpoint->own->open, 1); /* after clearing the rings */
	insula_session_ring(endpoint);
	return 0;
}

bool insula_session_peer_joined(const struct insula_endpoint *endpoint)
{
	u64 session = smp_load_acquire(&endpoint->peer->session); /* before `open` */

	return session == READ_ONCE(endpoint->session) && READ_ONCE(endpoint->peer->open) &&
	       !READ_ONCE(endpoint->area->disconnected);
}

bool insula_session_try_to_join(struct insula_endpoint *endpoint)
{
	u64 session;

	if (!smp_load_acquire(&endpoint->peer->open)) /* then its rings are cleared */
		return false;
	session = READ_ONCE(endpoint->peer->session);
	if (session == READ_ONCE(endpoint->own->session))
		return false;
	WRITE_ONCE(endpoint->own->open, 1);
	smp_store_release(&endpoint->own->session, session); /* after `open` */
	smp_mb(); /* either a base beginning another session sees this, or we see that session */
	if (READ_ONCE(endpoint->peer->session) == session && READ_ONCE(endpoint->peer->open)) {
		WRITE_ONCE(endpoint->session, session);
		return true;
	}
	WRITE_ONCE(endpoint->own->open, 0);
	return false;
}

void insula_session_leave(struct insula_endpoint *endpoint)
{
	lockdep_assert_held(&endpoint->lock);
	if (READ_ONCE(endpoint->area->disconnected))
		return;
	WRITE_ONCE(endpoint->own->open, 0);
	insula_session_ring(endpoint);
}
