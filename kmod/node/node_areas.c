// SPDX-License-Identifier: GPL-2.0-only
/*
 * Layout of the areas in a node's memory that it shares with the base, before its start. Laying
 * out an area again replaces it.
 */
#include "node/node_areas.h"

#include <linux/err.h>
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "arch/x86/doorbell.h"
#include "channel/area.h"
#include "delegation/slots.h"
#include "grant/grant_channel.h"
#include "mem/memory.h"
#include "mem/shown.h"
#include "node/node_state.h"
#include "node/resize.h"

static struct insula_ringable *node_areas_ringable(const struct insula_node *node)
{
	struct insula_ringable *ringable = insula_ringable_new(node->cpus, node->cpus_count);

	if (ringable && insula_node_shares_confined(node))
		ringable->apic_ids[0] = insula_node_share_id(node);
	return ringable;
}

static int node_areas_lay_out_channels(struct insula_node *node,
				       const struct insula_area_place *place)
{
	struct insula_ringable *ringable;
	struct insula_area *area;
	int err;

	lockdep_assert_held(&node->lock);
	/* The former area is disconnected even if this fails. */
	insula_area_disconnect(node->area);
	err = insula_area_unmap(node->area);
	if (err)
		return err;
	ringable = node_areas_ringable(node);
	if (!ringable)
		return -ENOMEM;
	insula_node_monitor_guest_ids(node, &ringable->apic_ids[ringable->count]);
	area = insula_area_create(place, ringable);
	if (IS_ERR(area)) {
		kfree(ringable);
		return PTR_ERR(area);
	}
	insula_grant_channel_put(node->grants);
	WRITE_ONCE(node->grants, NULL);
	insula_area_put(node->area);
	node->area = area;
	return 0;
}

int insula_node_lay_out_channels(struct insula_node *node, const struct insula_channels *channels)
{
	int err = insula_area_check(channels->count, channels->slots);
	struct insula_area_place place;

	if (err)
		return err;
	if (!IS_ALIGNED(channels->start, PAGE_SIZE) ||
	    !insula_memory_covers(node->memory, channels->start,
				  INSULA_AREA_SIZE(channels->count, channels->slots)))
		return -EINVAL;
	if (node->state != INSULA_CREATING)
		return -EBUSY;
	place = (struct insula_area_place) {
		.start = channels->start,
		.memory = insula_memory_is_shown(node->memory) ? NULL :
			  phys_to_virt(channels->start),
		.count = channels->count,
		.slots = channels->slots,
		.object = node->memory,
		.permits = insula_node_monitor_doorbells(node),
		.permits_object = node->vmm.memory,
	};
	return node_areas_lay_out_channels(node, &place);
}

static int node_areas_lay_out_delegation(struct insula_node *node,
					 const struct insula_slots_place *place)
{
	struct insula_ringable *ringable;
	struct insula_slots *slots;
	int err;

	ringable = node_areas_ringable(node);
	if (!ringable)
		return -ENOMEM;
	slots = insula_slots_create(place, ringable);
	if (IS_ERR(slots)) {
		kfree(ringable);
		return PTR_ERR(slots);
	}
	/* It goes on while its core has interrupts off: so must those whom it calls. */
	err = node->share_by == INSULA_SHARE_BY_NMI ?
	      insula_slots_keep_off(slots, node->cpus[0]) : 0;
	if (err) {
		insula_slots_put(slots);
		return err;
	}
	insula_slots_disconnect(node->slots);
	insula_slots_put(node->slots);
	node->slots = slots;
	return 0;
}

int insula_node_lay_out_delegation(struct insula_node *node,
				   const struct insula_delegation *delegation)
{
	u64 *doorbells = insula_node_monitor_doorbells(node);
	struct insula_slots_place place;

	if (delegation->reserved || delegation->pages < INSULA_LWK_PAGES_MIN ||
	    delegation->pages > INSULA_LWK_PAGES_MAX || !PAGE_ALIGNED(delegation->start) ||
	    !insula_memory_covers(node->memory, delegation->start,
				  (u64)delegation->pages * PAGE_SIZE))
		return -EINVAL;
	if (node->state != INSULA_CREATING)
		return -EBUSY;
	if (insula_memory_is_shown(node->memory))
		return -EOPNOTSUPP;
	place = (struct insula_slots_place) {
		.start = delegation->start,
		.pages = delegation->pages,
		.memory = node->memory,
		.node = node,
		.nested = node->vmm.nested,
		.permit = doorbells ? &doorbells[INSULA_CHANNELS_MAX] : NULL,
	};
	return node_areas_lay_out_delegation(node, &place);
}
