// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sessions of channels: the words of both endpoints in shared memory. Each side writes its own
 * endpoint and does not trust the other. Protocol: docs/src/channels.md; layout:
 * insula_channel.h.
 */
#include "channel/session.h"

#include <linux/rcupdate.h>
#include <linux/string.h>

void insula_session_ring(const struct insula_channel *channel)
{
	const struct insula_area *area = channel->area;

	rcu_read_lock();
	if (!READ_ONCE(area->disconnected))
		insula_doorbell_ring(&channel->peer->doorbell, rcu_dereference(area->ringable));
	rcu_read_unlock();
}

void insula_session_signal(struct insula_channel *channel, u32 event)
{
	/* Its memory may be reused. */
	if (READ_ONCE(channel->area->disconnected))
		return;
	/* If events were pending already, the doorbell was rung for them. */
	if (!atomic64_fetch_or(BIT_ULL(event), (atomic64_t *)channel->events_out))
		insula_session_ring(channel);
}

bool insula_session_disconnected(const struct insula_channel *channel)
{
	u64 session = smp_load_acquire(&channel->peer->session); /* before `open` */
	u64 own = READ_ONCE(channel->session);
	bool open = READ_ONCE(channel->peer->open);

	if (READ_ONCE(channel->area->disconnected))
		return true;
	/* A node that has not joined the base's session yet has not left it. */
	if (channel->area->base)
		return session == own && !open;
	return session != own || !open;
}

int insula_session_begin(struct insula_channel *channel)
{
	lockdep_assert_held(&channel->lock);
	WRITE_ONCE(channel->session, channel->session + 1);
	WRITE_ONCE(channel->own->session, channel->session);
	smp_mb(); /* either a node joining now sees this session, or we see its `open` */
	if (READ_ONCE(channel->peer->open))
		return -EBUSY;
	memset(channel->rings, 0, INSULA_RINGS_SIZE(channel->area->place.slots));
	WRITE_ONCE(*channel->events_in, 0);
	WRITE_ONCE(*channel->events_out, 0);
	insula_doorbell_publish(&channel->doorbell, &channel->own->doorbell);
	smp_store_release(&channel->own->open, 1); /* after clearing the rings */
	insula_session_ring(channel);
	return 0;
}

bool insula_session_peer_joined(const struct insula_channel *channel)
{
	u64 session = smp_load_acquire(&channel->peer->session); /* before `open` */

	return session == READ_ONCE(channel->session) && READ_ONCE(channel->peer->open) &&
	       !READ_ONCE(channel->area->disconnected);
}

bool insula_session_try_to_join(struct insula_channel *channel)
{
	u64 session;

	if (!smp_load_acquire(&channel->peer->open)) /* then its rings are cleared */
		return false;
	session = READ_ONCE(channel->peer->session);
	if (session == READ_ONCE(channel->own->session))
		return false;
	WRITE_ONCE(channel->own->open, 1);
	smp_store_release(&channel->own->session, session); /* after `open` */
	smp_mb(); /* either a base beginning another session sees this, or we see that session */
	if (READ_ONCE(channel->peer->session) == session && READ_ONCE(channel->peer->open)) {
		WRITE_ONCE(channel->session, session);
		return true;
	}
	WRITE_ONCE(channel->own->open, 0);
	return false;
}

void insula_session_leave(struct insula_channel *channel)
{
	lockdep_assert_held(&channel->lock);
	if (READ_ONCE(channel->area->disconnected))
		return;
	WRITE_ONCE(channel->own->open, 0);
	insula_session_ring(channel);
}
