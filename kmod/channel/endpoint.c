// SPDX-License-Identifier: GPL-2.0-only
/*
 * Endpoints of channels: claim and release, doorbells, and messages of those that are used by
 * this kernel itself, in the base and in a Linux node.
 */
#include "channel/endpoint.h"

#include <linux/err.h>
#include <linux/export.h>
#include <linux/mm.h>
#include <linux/poll.h>
#include <linux/rcupdate.h>
#include <linux/vmalloc.h>

#include "channel/area.h"
#include "channel/endpoint_file.h"
#include "channel/session.h"
#include "mem/shown.h"

static void endpoint_rung(struct insula_doorbell *doorbell)
{
	struct insula_endpoint *endpoint = container_of(doorbell, struct insula_endpoint, doorbell);
	u64 events = READ_ONCE(*endpoint->events_in) ? xchg(endpoint->events_in, 0) : 0;
	void (*rung)(struct insula_endpoint *endpoint, u64 events);

	rcu_read_lock(); /* insula_endpoint_disable() waits for the end of rung() */
	rung = READ_ONCE(endpoint->rung);
	if (rung)
		rung(endpoint, events);
	rcu_read_unlock();
	atomic64_inc(&endpoint->rings_count);
	wake_up_poll(&endpoint->waitqueue, EPOLLIN);
}

void insula_endpoint_init(struct insula_endpoint *endpoint, struct insula_area *area, u32 index,
			  struct insula_endpoints *shared)
{
	u64 offset = INSULA_AREA_SIZE(index, area->place.slots);

	endpoint->area = area;
	endpoint->own = area->base ? &shared->base : &shared->node;
	endpoint->peer = area->base ? &shared->node : &shared->base;
	endpoint->events_in = area->base ? &shared->to_base.pending : &shared->to_node.pending;
	endpoint->events_out = area->base ? &shared->to_node.pending : &shared->to_base.pending;
	if (area->place.memory)
		endpoint->rings = (void *)shared + INSULA_CHANNEL_RINGS;
	endpoint->rings_start = area->place.start + offset + INSULA_CHANNEL_RINGS;
	endpoint->doorbell.rung = endpoint_rung;
	if (area->place.permits)
		endpoint->doorbell.permit = &area->place.permits[index];
	mutex_init(&endpoint->lock);
	init_waitqueue_head(&endpoint->waitqueue);
	insula_endpoint_file_init(endpoint);
}

int insula_endpoint_map_rings(struct insula_endpoint *endpoint)
{
	const struct insula_area_place *place = &endpoint->area->place;
	void *rings;

	if (READ_ONCE(endpoint->rings) || READ_ONCE(endpoint->area->disconnected))
		return 0;
	rings = insula_shown_map(place->object, endpoint->rings_start,
				 INSULA_RINGS_SIZE(place->slots) >> PAGE_SHIFT);
	if (IS_ERR(rings))
		return PTR_ERR(rings);
	if (cmpxchg(&endpoint->rings, NULL, rings))
		vunmap(rings); /* somebody else was first */
	return 0;
}

unsigned long insula_endpoint_rings_frame(const struct insula_endpoint *endpoint,
					  unsigned long page)
{
	if (endpoint->area->place.memory)
		return PHYS_PFN(endpoint->rings_start) + page;
	return vmalloc_to_pfn(endpoint->rings + (page << PAGE_SHIFT));
}

int insula_endpoint_claim(struct insula_endpoint *endpoint)
{
	int err;

	lockdep_assert_held(&endpoint->lock);
	if (READ_ONCE(endpoint->area->disconnected))
		return -EPIPE;
	if (endpoint->open)
		return -EBUSY;
	if (!endpoint->has_doorbell) {
		err = insula_doorbell_create(&endpoint->doorbell);
		if (err)
			return err;
		endpoint->has_doorbell = true;
	}
	atomic64_set(&endpoint->rings_count, 0);
	endpoint->joined = false;
	endpoint->open = true;
	return 0;
}

void insula_endpoint_release(struct insula_endpoint *endpoint)
{
	mutex_lock(&endpoint->lock);
	endpoint->open = false;
	insula_session_leave(endpoint);
	insula_doorbell_publish(&endpoint->doorbell, NULL);
	mutex_unlock(&endpoint->lock);
}
EXPORT_SYMBOL_GPL(insula_endpoint_release);

struct insula_endpoint *insula_endpoint_open(struct insula_area *area, u32 index)
{
	struct insula_endpoint *endpoint;
	int err;

	if (index >= area->place.count)
		return ERR_PTR(-ENOENT);
	endpoint = &area->endpoints[index];
	err = insula_endpoint_map_rings(endpoint);
	if (err)
		return ERR_PTR(err);
	mutex_lock(&endpoint->lock);
	err = insula_endpoint_claim(endpoint);
	mutex_unlock(&endpoint->lock);
	return err ? ERR_PTR(err) : endpoint;
}

void insula_endpoint_enable(struct insula_endpoint *endpoint,
			    void (*rung)(struct insula_endpoint *endpoint, u64 events))
{
	mutex_lock(&endpoint->lock);
	WRITE_ONCE(endpoint->rung, rung);
	if (!READ_ONCE(endpoint->area->disconnected))
		insula_doorbell_publish(&endpoint->doorbell, &endpoint->own->doorbell);
	mutex_unlock(&endpoint->lock);
}
EXPORT_SYMBOL_GPL(insula_endpoint_enable);

void insula_endpoint_disable(struct insula_endpoint *endpoint)
{
	mutex_lock(&endpoint->lock);
	WRITE_ONCE(endpoint->rung, NULL);
	insula_doorbell_publish(&endpoint->doorbell, NULL);
	mutex_unlock(&endpoint->lock);
	synchronize_rcu(); /* see endpoint_rung() */
}
EXPORT_SYMBOL_GPL(insula_endpoint_disable);

void insula_endpoint_use(struct insula_endpoint *endpoint)
{
	struct insula_rings *rings = endpoint->rings;
	u32 count = endpoint->area->place.slots;
	struct insula_ring_place to_node = {
		.control = &rings->to_node,
		.slots = endpoint->rings + INSULA_RINGS_SLOTS,
		.count = count,
	};
	struct insula_ring_place to_base = {
		.control = &rings->to_base,
		.slots = to_node.slots + count,
		.count = count,
	};

	insula_consumer_init(&endpoint->consumer, endpoint->area->base ? &to_base : &to_node);
	insula_producer_init(&endpoint->producer, endpoint->area->base ? &to_node : &to_base);
	endpoint->joined = true;
}

bool insula_endpoint_join(struct insula_endpoint *endpoint)
{
	smp_mb(); /* either the base sees our doorbell, or we see its session */
	if (!insula_session_try_to_join(endpoint))
		return false;
	insula_endpoint_use(endpoint);
	insula_session_ring(endpoint);
	return true;
}
EXPORT_SYMBOL_GPL(insula_endpoint_join);

void insula_endpoint_leave(struct insula_endpoint *endpoint)
{
	endpoint->joined = false;
	mutex_lock(&endpoint->lock);
	insula_session_leave(endpoint);
	mutex_unlock(&endpoint->lock);
}
EXPORT_SYMBOL_GPL(insula_endpoint_leave);

void insula_endpoint_serve(struct insula_endpoint *endpoint, int (*handle_next)(void),
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
		if (err != -EAGAIN || insula_session_disconnected(endpoint)) {
			if (before_leave)
				before_leave();
			insula_endpoint_leave(endpoint);
			return;
		}
		/* The base rings when it sends more, or leaves. */
	} while (!insula_consumer_prepare_to_sleep(&endpoint->consumer));
}

int insula_endpoint_send(struct insula_endpoint *endpoint, const struct insula_message *message)
{
	int answer = insula_send(&endpoint->producer, message);

	if (answer > 0)
		insula_session_ring(endpoint);
	return min(answer, 0);
}
EXPORT_SYMBOL_GPL(insula_endpoint_send);

int insula_endpoint_receive(struct insula_endpoint *endpoint, void *buffer, u32 capacity,
			    struct insula_received *received)
{
	int answer = insula_receive(&endpoint->consumer, buffer, capacity, received);

	if (answer > 0)
		insula_session_ring(endpoint);
	return min(answer, 0);
}
EXPORT_SYMBOL_GPL(insula_endpoint_receive);
