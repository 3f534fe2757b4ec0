// SPDX-License-Identifier: GPL-2.0-only
/*
 * Endpoints of channels used by the kernel itself, in the base and in a Linux node.
 */
#include "channel/kernel_endpoint.h"

#include <linux/export.h>

#include "channel/session.h"

/* A claimed endpoint counts as open, and so excludes programs. */
static int kernel_endpoint_claim(struct insula_channel *channel,
				 struct insula_kernel_endpoint *endpoint)
{
	int err;

	if (channel->open)
		return -EBUSY;
	if (channel->has_doorbell)
		insula_doorbell_destroy(&channel->doorbell);
	channel->user = endpoint;
	err = insula_doorbell_create(&channel->doorbell);
	channel->has_doorbell = !err;
	channel->open = !err;
	if (err)
		channel->user = NULL;
	else
		insula_doorbell_publish(&channel->doorbell, &channel->own->doorbell);
	return err;
}

int insula_endpoint_claim(struct insula_kernel_endpoint *endpoint, struct insula_area *area,
			  u32 index)
{
	int err;

	if (index >= area->place.count)
		return -ENOENT;
	endpoint->channel = &area->channels[index];
	endpoint->joined = false;
	mutex_lock(&endpoint->channel->lock);
	err = kernel_endpoint_claim(endpoint->channel, endpoint);
	mutex_unlock(&endpoint->channel->lock);
	return err;
}

void insula_endpoint_disable(struct insula_kernel_endpoint *endpoint)
{
	struct insula_channel *channel = endpoint->channel;

	mutex_lock(&channel->lock);
	insula_doorbell_destroy(&channel->doorbell);
	channel->has_doorbell = false;
	channel->user = NULL;
	mutex_unlock(&channel->lock);
}
EXPORT_SYMBOL_GPL(insula_endpoint_disable);

void insula_endpoint_release(struct insula_kernel_endpoint *endpoint)
{
	if (endpoint->joined)
		insula_endpoint_leave(endpoint);
	mutex_lock(&endpoint->channel->lock);
	endpoint->channel->open = false;
	mutex_unlock(&endpoint->channel->lock);
}
EXPORT_SYMBOL_GPL(insula_endpoint_release);

void insula_endpoint_use(struct insula_kernel_endpoint *endpoint)
{
	const struct insula_channel *channel = endpoint->channel;
	struct insula_rings *rings = channel->rings;
	u32 count = channel->area->place.slots;
	struct insula_ring_place to_node = {
		.control = &rings->to_node,
		.slots = channel->rings + INSULA_RINGS_SLOTS,
		.count = count,
	};
	struct insula_ring_place to_base = {
		.control = &rings->to_base,
		.slots = to_node.slots + count,
		.count = count,
	};

	insula_consumer_init(&endpoint->consumer, channel->area->base ? &to_base : &to_node);
	insula_producer_init(&endpoint->producer, channel->area->base ? &to_node : &to_base);
	endpoint->joined = true;
}

void insula_endpoint_lock(struct insula_kernel_endpoint *endpoint)
{
	mutex_lock(&endpoint->channel->lock);
}

void insula_endpoint_unlock(struct insula_kernel_endpoint *endpoint)
{
	mutex_unlock(&endpoint->channel->lock);
}

int insula_endpoint_begin(struct insula_kernel_endpoint *endpoint)
{
	struct insula_channel *channel = endpoint->channel;

	return READ_ONCE(channel->area->disconnected) ? -EPIPE : insula_session_begin(channel);
}

bool insula_endpoint_peer_joined(const struct insula_kernel_endpoint *endpoint)
{
	return insula_session_peer_joined(endpoint->channel);
}

bool insula_endpoint_peer_left(const struct insula_kernel_endpoint *endpoint)
{
	const struct insula_channel *channel = endpoint->channel;

	return !READ_ONCE(channel->area->disconnected) && insula_session_disconnected(channel);
}

bool insula_endpoint_join(struct insula_kernel_endpoint *endpoint)
{
	smp_mb(); /* either the base sees our doorbell, or we see its session */
	if (!insula_session_try_to_join(endpoint->channel))
		return false;
	insula_endpoint_use(endpoint);
	insula_session_ring(endpoint->channel);
	return true;
}
EXPORT_SYMBOL_GPL(insula_endpoint_join);

void insula_endpoint_leave(struct insula_kernel_endpoint *endpoint)
{
	endpoint->joined = false;
	mutex_lock(&endpoint->channel->lock);
	insula_session_leave(endpoint->channel);
	mutex_unlock(&endpoint->channel->lock);
}
EXPORT_SYMBOL_GPL(insula_endpoint_leave);

void insula_endpoint_serve(struct insula_kernel_endpoint *endpoint, int (*handle_next)(void),
			   void (*before_leave)(void))
{
	int err;

	if (!endpoint->joined && !insula_endpoint_join(endpoint))
		return;
	do {
		insula_consumer_stay_awake(&endpoint->consumer);
		do {
			err = handle_next();
		} while (!err);
		if (err != -EAGAIN || insula_endpoint_disconnected(endpoint)) {
			if (before_leave)
				before_leave();
			insula_endpoint_leave(endpoint);
			return;
		}
		/* The base rings when it sends more, or leaves. */
	} while (!insula_consumer_prepare_to_sleep(&endpoint->consumer));
}

int insula_endpoint_send(struct insula_kernel_endpoint *endpoint,
			 const struct insula_message *message)
{
	int answer = insula_send(&endpoint->producer, message);

	if (answer > 0)
		insula_session_ring(endpoint->channel);
	return min(answer, 0);
}
EXPORT_SYMBOL_GPL(insula_endpoint_send);

int insula_endpoint_receive(struct insula_kernel_endpoint *endpoint, void *buffer, u32 capacity,
			    struct insula_received *received)
{
	int answer = insula_receive(&endpoint->consumer, buffer, capacity, received);

	if (answer > 0)
		insula_session_ring(endpoint->channel);
	return min(answer, 0);
}
EXPORT_SYMBOL_GPL(insula_endpoint_receive);

bool insula_endpoint_disconnected(const struct insula_kernel_endpoint *endpoint)
{
	return insula_session_disconnected(endpoint->channel);
}
EXPORT_SYMBOL_GPL(insula_endpoint_disconnected);

void insula_endpoint_signal(const struct insula_kernel_endpoint *endpoint, u32 event)
{
	insula_session_signal(endpoint->channel, event);
}
EXPORT_SYMBOL_GPL(insula_endpoint_signal);
