// SPDX-License-Identifier: GPL-2.0-only
/*
 * The base's side of the grant protocol (insula_grant.h).
 *
 * The base's memory management waits for revocations while it holds locks of its own. So
 * nothing here waits for memory, and a node that does not answer is stopped right here: until
 * insula_grant_channel_end(), which needs the lock, its cores belong to the node.
 */
#include "grant/grant_channel.h"

#include <linux/delay.h>
#include <linux/err.h>
#include <linux/jiffies.h>
#include <linux/kref.h>
#include <linux/mutex.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/wait.h>

#include "arch/x86/start.h"
#include "channel/area.h"
#include "channel/endpoint.h"
#include "channel/session.h"
#include "node/nested_table.h"

/*
 * Limit for the node's module to join a session. It joins as soon as its core runs: within
 * seconds on a busy emulated machine, or after a pause of the whole machine.
 */
#define JOIN_TIMEOUT		msecs_to_jiffies(INSULA_GRANT_TIMEOUT_MAX_MS)
/* Interval between checks of a full ring. */
#define ROOM_POLL_US	50

struct insula_grant_channel {
	struct kref refs;
	struct insula_area *area;
	struct insula_nested_table *nested;	/* of a confined node, or NULL */
	struct insula_endpoint *endpoint;
	struct mutex lock;	/* all up to `lost`, and the endpoint's producer */
	u32 table_ids;		/* last id given to a grant table */
	u32 revoke_sequence;	/* of the last REVOKING */
	bool ended;		/* the node uses no grant any more */
	bool lost;		/* it may, forever: a core could not be stopped */
	u32 apic_ids[INSULA_NODE_CPUS_MAX];
	spinlock_t receive_lock;	/* revoked_sequence, and the endpoint's consumer */
	u32 revoked_sequence;	/* of the last REVOKED */
};

/* Memory reclaim may take the lock: teach lockdep before that happens. */
static void grant_channel_prime_lockdep(struct insula_grant_channel *channel)
{
	fs_reclaim_acquire(GFP_KERNEL);
	might_lock(&channel->lock);
	fs_reclaim_release(GFP_KERNEL);
}

struct insula_grant_channel *insula_grant_channel_create(struct insula_area *area,
							 struct insula_nested_table *nested)
{
	struct insula_grant_channel *channel = kzalloc(sizeof(*channel), GFP_KERNEL);
	struct insula_endpoint *endpoint;

	if (!channel)
		return ERR_PTR(-ENOMEM);
	kref_init(&channel->refs);
	mutex_init(&channel->lock);
	grant_channel_prime_lockdep(channel);
	spin_lock_init(&channel->receive_lock);
	endpoint = insula_endpoint_open(area, INSULA_CHANNEL_GRANTS);
	if (IS_ERR(endpoint)) {
		kfree(channel);
		return ERR_CAST(endpoint);
	}
	channel->endpoint = endpoint;
	insula_endpoint_enable(endpoint, NULL);
	insula_area_get(area);
	channel->area = area;
	insula_nested_table_get(nested);
	channel->nested = nested;
	return channel;
}

struct insula_nested_table *insula_grant_channel_nested(const struct insula_grant_channel *channel)
{
	return channel->nested;
}

static void grant_channel_free(struct kref *refs)
{
	struct insula_grant_channel *channel = container_of(refs, struct insula_grant_channel,
							    refs);

	insula_endpoint_disable(channel->endpoint);
	insula_endpoint_release(channel->endpoint);
	insula_area_put(channel->area);
	insula_nested_table_put(channel->nested);
	kfree(channel);
}

void insula_grant_channel_get(struct insula_grant_channel *channel)
{
	kref_get(&channel->refs);
}

void insula_grant_channel_put(struct insula_grant_channel *channel)
{
	if (channel)
		kref_put(&channel->refs, grant_channel_free);
}

void insula_grant_channel_lock(struct insula_grant_channel *channel)
{
	mutex_lock(&channel->lock);
}

bool insula_grant_channel_trylock(struct insula_grant_channel *channel)
{
	return mutex_trylock(&channel->lock);
}

void insula_grant_channel_unlock(struct insula_grant_channel *channel)
{
	mutex_unlock(&channel->lock);
}

void insula_grant_channel_assert_locked(const struct insula_grant_channel *channel)
{
	lockdep_assert_held(&channel->lock);
}

u32 insula_grant_channel_new_id(struct insula_grant_channel *channel)
{
	u32 id;

	mutex_lock(&channel->lock);
	id = ++channel->table_ids;
	mutex_unlock(&channel->lock);
	return id;
}

/* Begin a session, unless there is one. Lock held. */
static int grant_channel_begin(struct insula_grant_channel *channel)
{
	int err;

	lockdep_assert_held(&channel->lock);
	if (channel->ended)
		return -EPIPE;
	if (channel->endpoint->joined && !insula_session_disconnected(channel->endpoint))
		return 0;
	spin_lock(&channel->receive_lock);
	channel->endpoint->joined = false;
	spin_unlock(&channel->receive_lock);
	err = insula_session_begin(channel->endpoint);
	if (err)
		return err;
	spin_lock(&channel->receive_lock);
	insula_endpoint_use(channel->endpoint);
	/* Leaving the last session revoked all of its grants. */
	channel->revoked_sequence = channel->revoke_sequence;
	spin_unlock(&channel->receive_lock);
	return 0;
}

static bool grant_channel_is_over(const struct insula_grant_channel *channel)
{
	return READ_ONCE(channel->ended) || insula_session_disconnected(channel->endpoint);
}

int insula_grant_channel_connect(struct insula_grant_channel *channel)
{
	long left;
	int err;

	mutex_lock(&channel->endpoint->lock);
	mutex_lock(&channel->lock);
	err = grant_channel_begin(channel);
	mutex_unlock(&channel->lock);
	mutex_unlock(&channel->endpoint->lock);
	if (err)
		return err == -EBUSY ? -ENOTCONN : err;
	left = wait_event_interruptible_timeout(channel->endpoint->waitqueue,
						insula_session_peer_joined(channel->endpoint) ||
						grant_channel_is_over(channel), JOIN_TIMEOUT);
	if (left < 0)
		return -EINTR;
	if (READ_ONCE(channel->ended))
		return -EPIPE;
	return insula_session_peer_joined(channel->endpoint) ? 0 : -ENOTCONN;
}

static int grant_channel_send(struct insula_grant_channel *channel,
			      const struct insula_message *message)
{
	lockdep_assert_held(&channel->lock);
	if (channel->ended || !channel->endpoint->joined)
		return -EPIPE;
	return insula_endpoint_send(channel->endpoint, message);
}

int insula_grant_channel_grant(struct insula_grant_channel *channel,
			       const struct insula_grant_message *body,
			       const struct insula_pages *pages, u8 pages_count)
{
	struct insula_message message = {
		.pages = pages,
		.pages_count = pages_count,
		.bytes = body,
		.bytes_size = sizeof(*body),
		.kind = INSULA_GRANT_GRANTED,
	};

	return grant_channel_send(channel, &message);
}

/* Process the next message, ignoring implausible sequence numbers. receive_lock held. */
static int grant_channel_receive(struct insula_grant_channel *channel)
{
	struct insula_received received;
	struct insula_grant_message body;
	u32 last = channel->revoked_sequence;
	int err = insula_endpoint_receive(channel->endpoint, &body, sizeof(body), &received);

	lockdep_assert_held(&channel->receive_lock);
	if (err)
		return err;
	if (received.kind == INSULA_GRANT_REVOKED && received.size == sizeof(body) &&
	    body.sequence - last <= READ_ONCE(channel->revoke_sequence) - last)
		channel->revoked_sequence = body.sequence;
	return 0;
}

/* Process pending messages, at most a ring full of them, and check for a revocation. */
static bool grant_channel_is_revoked(struct insula_grant_channel *channel, u32 sequence)
{
	struct insula_consumer *consumer = &channel->endpoint->consumer;
	u32 left = INSULA_SLOTS_MAX;
	bool revoked;
	int err = 0;

	spin_lock(&channel->receive_lock);
	while (channel->endpoint->joined && left-- && err != -EPROTO && err != -EMSGSIZE) {
		err = grant_channel_receive(channel);
		if (err == -EAGAIN && insula_consumer_prepare_to_sleep(consumer))
			break;
	}
	revoked = (s32)(channel->revoked_sequence - sequence) >= 0;
	spin_unlock(&channel->receive_lock);
	return revoked;
}

static bool grant_channel_is_done(struct insula_grant_channel *channel, u32 sequence)
{
	return grant_channel_is_revoked(channel, sequence) || grant_channel_is_over(channel);
}

/* Assign a revocation its sequence number and send it. */
static int grant_channel_send_revoke(struct insula_grant_channel *channel,
				     struct insula_grant_message *body,
				     unsigned long deadline)
{
	struct insula_message message = {
		.bytes = body,
		.bytes_size = sizeof(*body),
		.kind = INSULA_GRANT_REVOKING,
	};
	int err;

	for (;;) {
		mutex_lock(&channel->lock);
		body->sequence = channel->revoke_sequence + 1;
		err = grant_channel_send(channel, &message);
		if (!err)
			WRITE_ONCE(channel->revoke_sequence, body->sequence);
		mutex_unlock(&channel->lock);
		if (err != -EAGAIN || grant_channel_is_over(channel))
			return err;
		if (time_after(jiffies, deadline))
			return -ETIMEDOUT;
		usleep_range(ROOM_POLL_US, 2 * ROOM_POLL_US);
	}
}

/* Reset all cores of the node at once, then wait until each is parked. Lock held. */
static bool grant_channel_reset_cores(struct insula_grant_channel *channel)
{
	u32 count = insula_area_cores(channel->area, channel->apic_ids,
				      ARRAY_SIZE(channel->apic_ids));

	lockdep_assert_held(&channel->lock);
	return insula_start_park_all(channel->apic_ids, count);
}

static int grant_channel_stop_node(struct insula_grant_channel *channel)
{
	int err = 0;

	mutex_lock(&channel->lock);
	if (!channel->ended) {
		channel->lost = !grant_channel_reset_cores(channel);
		WRITE_ONCE(channel->ended, true);
		insula_nested_table_end(channel->nested, channel->lost);
		err = -ETIMEDOUT;
	}
	if (channel->lost)
		err = -EIO;
	mutex_unlock(&channel->lock);
	wake_up_all(&channel->endpoint->waitqueue);
	return err;
}

int insula_grant_channel_revoke(struct insula_grant_channel *channel,
				const struct insula_grant_message *range,
				u32 timeout_ms)
{
	unsigned long deadline = jiffies + msecs_to_jiffies(timeout_ms);
	struct insula_grant_message body = *range;
	int err = grant_channel_send_revoke(channel, &body, deadline);

	if (!err)
		wait_event_timeout(channel->endpoint->waitqueue,
				   grant_channel_is_done(channel, body.sequence),
				   max_t(long, deadline - jiffies, 1));
	if (!err && grant_channel_is_revoked(channel, body.sequence))
		return 0;
	/* Even if someone else is ending the node, its cores may still execute here. */
	return insula_session_peer_left(channel->endpoint) ? 0 : grant_channel_stop_node(channel);
}

void insula_grant_channel_end(struct insula_grant_channel *channel, bool lost)
{
	if (!channel)
		return;
	mutex_lock(&channel->lock);
	WRITE_ONCE(channel->ended, true);
	channel->lost |= lost;
	mutex_unlock(&channel->lock);
	wake_up_all(&channel->endpoint->waitqueue);
}
