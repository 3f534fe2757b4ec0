// SPDX-License-Identifier: GPL-2.0-only
/*
 * Channel areas: the memory of all channels between the base and one node, and their endpoints
 * on this side.
 */
#include "channel/area.h"

#include <linux/err.h>
#include <linux/file.h>
#include <linux/gfp.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "mem/memory.h"

int insula_area_check(u32 count, u32 slots)
{
	if (!count || count > INSULA_CHANNELS_MAX || slots < INSULA_SLOTS_MIN ||
	    slots > INSULA_SLOTS_MAX || !is_power_of_2(slots))
		return -EINVAL;
	return 0;
}

/* A page of the area. */
static void *area_page(const struct insula_area_place *place, u64 offset)
{
	if (place->memory)
		return place->memory + offset;
	return insula_memory_address(place->object, place->start + offset, PAGE_SIZE);
}

/* Find the first page of the area, and that of each channel. */
static int area_find_pages(struct insula_area *area)
{
	const struct insula_area_place *place = &area->place;
	void *page = area_page(place, 0);
	u32 i;

	if (IS_ERR(page))
		return PTR_ERR(page);
	area->header = page;
	for (i = 0; i < place->count; i++) {
		page = area_page(place, INSULA_AREA_SIZE(i, place->slots));
		if (IS_ERR(page))
			return PTR_ERR(page);
		insula_endpoint_init(&area->endpoints[i], area, i, page);
	}
	return 0;
}

static struct insula_area *area_new(const struct insula_area_place *place, bool base)
{
	struct insula_area *area;
	int err;

	area = kvzalloc(struct_size(area, endpoints, place->count), GFP_KERNEL);
	if (!area)
		return ERR_PTR(-ENOMEM);
	kref_init(&area->refs);
	init_rwsem(&area->mapping);
	area->place = *place;
	area->base = base;
	err = area_find_pages(area);
	if (err) {
		kvfree(area);
		return ERR_PTR(err);
	}
	if (place->object)
		get_file(place->object);
	if (place->permits_object)
		get_file(place->permits_object);
	return area;
}

/* The node is still in sessions with the original's base: it is to leave them. */
static void area_leave_kept(struct insula_area *area)
{
	struct insula_endpoint *endpoint;
	u32 i;

	for (i = 0; i < area->place.count; i++) {
		endpoint = &area->endpoints[i];
		endpoint->session = endpoint->own->session;
		endpoint->own->doorbell = INSULA_DOORBELL_FOREIGN; /* none yet */
		endpoint->own->open = 0;
		/* What the base's cores are called here, the node may call its own. */
		endpoint->doorbell.mark = INSULA_DOORBELL_FOREIGN;
	}
}

struct insula_area *insula_area_create(const struct insula_area_place *place,
				       struct insula_ringable *ringable)
{
	struct insula_area *area = area_new(place, true);
	u32 i;

	if (IS_ERR(area))
		return area;
	RCU_INIT_POINTER(area->ringable, ringable);
	if (!place->memory) {
		area_leave_kept(area);
		return area;
	}
	*area->header = (struct insula_area_header) {
		.magic = INSULA_CHANNEL_MAGIC,
		.revision = INSULA_CHANNEL_REVISION,
		.count = place->count,
		.slots = place->slots,
	};
	for (i = 0; i < place->count; i++) {
		memset(area->endpoints[i].own, 0, sizeof(struct insula_endpoint_state));
		memset(area->endpoints[i].peer, 0, sizeof(struct insula_endpoint_state));
	}
	return area;
}

void insula_area_set_ringable(struct insula_area *area, struct insula_ringable *ringable)
{
	ringable = rcu_replace_pointer(area->ringable, ringable, true);
	kfree_rcu(ringable, rcu);
}

struct insula_area *insula_area_join(const struct insula_area_place *place)
{
	return area_new(place, false);
}

static void area_free(struct kref *refs)
{
	struct insula_area *area = container_of(refs, struct insula_area, refs);
	u32 i;

	for (i = 0; i < area->place.count; i++) {
		if (area->endpoints[i].has_doorbell)
			insula_doorbell_destroy(&area->endpoints[i].doorbell);
		if (!area->place.memory)
			vunmap(area->endpoints[i].rings);
	}
	if (area->place.object)
		fput(area->place.object);
	if (area->place.permits_object)
		fput(area->place.permits_object);
	kfree(rcu_dereference_protected(area->ringable, true));
	if (area->scratch)
		__free_page(area->scratch); /* a mapping would hold a descriptor */
	kvfree(area);
}

void insula_area_get(struct insula_area *area)
{
	kref_get(&area->refs);
}

u32 insula_area_cores(const struct insula_area *area, u32 *apic_ids, u32 capacity)
{
	const struct insula_ringable *ringable;
	u32 count = 0;

	rcu_read_lock();
	ringable = rcu_dereference(area->ringable);
	if (ringable) {
		count = min(ringable->count, capacity);
		memcpy(apic_ids, ringable->apic_ids, count * sizeof(*apic_ids));
	}
	rcu_read_unlock();
	return count;
}

const u32 *insula_area_node_flags(const struct insula_area *area)
{
	return area ? &area->header->node : NULL;
}

void insula_area_set_node_flags(struct insula_area *area, u32 flags)
{
	WRITE_ONCE(area->header->node, flags);
}

void insula_area_put(struct insula_area *area)
{
	if (area)
		kref_put(&area->refs, area_free);
}

void insula_area_disconnect(struct insula_area *area)
{
	u32 i;

	if (!area)
		return;
	WRITE_ONCE(area->disconnected, true);
	for (i = 0; i < area->place.count; i++) {
		struct insula_endpoint *endpoint = &area->endpoints[i];

		/* Writers to the memory have finished, or see `disconnected`. */
		mutex_lock(&endpoint->lock);
		if (endpoint->has_doorbell)
			insula_doorbell_publish(&endpoint->doorbell, NULL);
		mutex_unlock(&endpoint->lock);
		wake_up_poll(&endpoint->waitqueue, EPOLLHUP);
	}
}

static void area_unmap_rings(struct insula_area *area)
{
	u32 i;

	lockdep_assert_held_write(&area->mapping);
	for (i = 0; i < area->place.count; i++)
		if (area->endpoints[i].mapping)
			unmap_mapping_range(area->endpoints[i].mapping, 0, 0, 1);
}

int insula_area_unmap(struct insula_area *area)
{
	struct page *scratch;

	if (!area || area->scratch)
		return 0;
	scratch = alloc_page(GFP_KERNEL | __GFP_ZERO);
	if (!scratch)
		return -ENOMEM;
	down_write(&area->mapping);
	area->scratch = scratch;
	area_unmap_rings(area);
	up_write(&area->mapping);
	return 0;
}
