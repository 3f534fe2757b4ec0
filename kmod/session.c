// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sessions of channels: what the words say that each end has in shared memory. Each side
 * writes its own, and believes nothing of the other's. The protocol is told in
 * docs/src/channels.md, the layout in insula_channel.h.
 */
#include "session.h"

#include <linux/rcupdate.h>
#include <linux/string.h>

void insula_session_ring(const struct insula_channel *channel)
{
	const struct insula_area *area = channel->area;

	rcu_read_lock();
	if (!READ_ONCE(area->gone))
		insula_doorbell_ring(&channel->peer->doorbell, rcu_dereference(area->ringable));
	rcu_read_unlock();
}

void insula_session_signal(struct insula_channel *channel, u32 event)
{
	/* Its memory may be in use for something else. */
	if (READ_ONCE(channel->area->gone))
		return;
	/* If one was pending, who signalled that has rung, and has not been heard yet. */
	if (!atomic64_fetch_or(BIT_ULL(event), (atomic64_t *)channel->signals))
		insula_session_ring(channel);
}

bool insula_session_hung_up(const struct insula_channel *channel)
{
	u64 session = smp_load_acquire(&channel->peer->session); /* it opened before */
	u64 own = READ_ONCE(channel->session);
	bool open = READ_ONCE(channel->peer->open);

	if (READ_ONCE(channel->area->gone))
		return true;
	/* A node that has not joined the base's session yet has not left it either. */
	if (channel->area->base)
		return session == own && !open;
	return session != own || !open;
}

int insula_session_begin(struct insula_channel *channel)
{
	lockdep_assert_held(&channel->lock);
	WRITE_ONCE(channel->session, channel->session + 1);
	WRITE_ONCE(channel->own->session, channel->session);
	smp_mb(); /* a node that opens meanwhile sees this, or we see it */
	if (READ_ONCE(channel->peer->open))
		return -EBUSY;
	memset(channel->rings, 0, INSULA_RINGS_SIZE(channel->area->place.slots));
	WRITE_ONCE(*channel->signalled, 0);
	WRITE_ONCE(*channel->signals, 0);
	insula_doorbell_publish(&channel->doorbell, &channel->own->doorbell);
	smp_store_release(&channel->own->open, 1); /* the clear rings */
	insula_session_ring(channel);
	return 0;
}

bool insula_session_answered(const struct insula_channel *channel)
{
	u64 session = smp_load_acquire(&channel->peer->session); /* it opened before */

	return session == READ_ONCE(channel->session) && READ_ONCE(channel->peer->open) &&
	       !READ_ONCE(channel->area->gone);
}

bool insula_session_try_to_join(struct insula_channel *channel)
{
	u64 session;

	if (!smp_load_acquire(&channel->peer->open)) /* its rings are clear */
		return false;
	session = READ_ONCE(channel->peer->session);
	if (session == READ_ONCE(channel->own->session))
		return false;
	WRITE_ONCE(channel->own->open, 1);
	smp_store_release(&channel->own->session, session); /* that it is open */
	smp_mb(); /* a base that makes another session meanwhile sees this, or we see it */
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
	if (READ_ONCE(channel->area->gone))
		return;
	WRITE_ONCE(channel->own->open, 0);
	insula_session_ring(channel);
}
