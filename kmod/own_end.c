// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ends of channels that this kernel uses itself, in the base and in a Linux node.
 */
#include "own_end.h"

#include <linux/export.h>

#include "session.h"

/* As two programs would exclude each other: a claimed end counts as open. */
static int claim(struct insula_channel *channel, struct insula_own_end *end)
{
	int err;

	if (channel->open)
		return -EBUSY;
	if (channel->audible)
		insula_doorbell_destroy(&channel->doorbell);
	channel->user = end;
	err = insula_doorbell_create(&channel->doorbell);
	channel->audible = !err;
	channel->open = !err;
	if (err)
		channel->user = NULL;
	else
		insula_doorbell_publish(&channel->doorbell, &channel->own->doorbell);
	return err;
}

int insula_own_end_claim(struct insula_own_end *end, struct insula_area *area, u32 index)
{
	int err;

	if (index >= area->place.count)
		return -ENOENT;
	end->channel = &area->channels[index];
	end->joined = false;
	mutex_lock(&end->channel->lock);
	err = claim(end->channel, end);
	mutex_unlock(&end->channel->lock);
	return err;
}

void insula_own_end_silence(struct insula_own_end *end)
{
	struct insula_channel *channel = end->channel;

	mutex_lock(&channel->lock);
	insula_doorbell_destroy(&channel->doorbell);
	channel->audible = false;
	channel->user = NULL;
	mutex_unlock(&channel->lock);
}
EXPORT_SYMBOL_GPL(insula_own_end_silence);

void insula_own_end_release(struct insula_own_end *end)
{
	if (end->joined)
		insula_own_end_leave(end);
	mutex_lock(&end->channel->lock);
	end->channel->open = false;
	mutex_unlock(&end->channel->lock);
}
EXPORT_SYMBOL_GPL(insula_own_end_release);

void insula_own_end_use(struct insula_own_end *end)
{
	const struct insula_channel *channel = end->channel;
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

	insula_consumer_init(&end->consumer, channel->area->base ? &to_base : &to_node);
	insula_producer_init(&end->producer, channel->area->base ? &to_node : &to_base);
	end->joined = true;
}

void insula_own_end_lock(struct insula_own_end *end)
{
	mutex_lock(&end->channel->lock);
}

void insula_own_end_unlock(struct insula_own_end *end)
{
	mutex_unlock(&end->channel->lock);
}

int insula_own_end_begin(struct insula_own_end *end)
{
	struct insula_channel *channel = end->channel;

	return READ_ONCE(channel->area->gone) ? -EPIPE : insula_session_begin(channel);
}

bool insula_own_end_answered(const struct insula_own_end *end)
{
	return insula_session_answered(end->channel);
}

bool insula_own_end_left(const struct insula_own_end *end)
{
	return !READ_ONCE(end->channel->area->gone) && insula_session_hung_up(end->channel);
}

bool insula_own_end_join(struct insula_own_end *end)
{
	smp_mb(); /* our doorbell is there, or we see the base's session */
	if (!insula_session_try_to_join(end->channel))
		return false;
	insula_own_end_use(end);
	insula_session_ring(end->channel);
	return true;
}
EXPORT_SYMBOL_GPL(insula_own_end_join);

void insula_own_end_leave(struct insula_own_end *end)
{
	end->joined = false;
	mutex_lock(&end->channel->lock);
	insula_session_leave(end->channel);
	mutex_unlock(&end->channel->lock);
}
EXPORT_SYMBOL_GPL(insula_own_end_leave);

void insula_own_end_serve(struct insula_own_end *end, int (*obey)(void), void (*before)(void))
{
	int err;

	if (!end->joined && !insula_own_end_join(end))
		return;
	do {
		insula_consumer_stay_awake(&end->consumer);
		do {
			err = obey();
		} while (!err);
		if (err != -EAGAIN || insula_own_end_hung_up(end)) {
			if (before)
				before();
			insula_own_end_leave(end);
			return;
		}
		/* Whoever has more to say, or leaves, rings. */
	} while (!insula_consumer_prepare_to_sleep(&end->consumer));
}

int insula_own_end_send(struct insula_own_end *end, const struct insula_message *message)
{
	int answer = insula_send(&end->producer, message);

	if (answer > 0)
		insula_session_ring(end->channel);
	return min(answer, 0);
}
EXPORT_SYMBOL_GPL(insula_own_end_send);

int insula_own_end_receive(struct insula_own_end *end, void *buffer, u32 capacity,
			   struct insula_received *received)
{
	int answer = insula_receive(&end->consumer, buffer, capacity, received);

	if (answer > 0)
		insula_session_ring(end->channel);
	return min(answer, 0);
}
EXPORT_SYMBOL_GPL(insula_own_end_receive);

bool insula_own_end_hung_up(const struct insula_own_end *end)
{
	return insula_session_hung_up(end->channel);
}
EXPORT_SYMBOL_GPL(insula_own_end_hung_up);

void insula_own_end_signal(const struct insula_own_end *end, u32 event)
{
	insula_session_signal(end->channel, event);
}
EXPORT_SYMBOL_GPL(insula_own_end_signal);
