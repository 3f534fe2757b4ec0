// SPDX-License-Identifier: GPL-2.0-only
/*
 * The parts of a node's memory by which it talks with the base. They are laid out before
 * it is started; to do so again is to begin anew.
 */
#include "node_areas.h"

#include <linux/err.h>
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "channel.h"
#include "desks.h"
#include "lending.h"
#include "life.h"
#include "memory.h"
#include "resize.h"

static int lay_out_channels(struct insula_node *node, const struct insula_area_place *place)
{
	struct insula_ringable *ringable;
	struct insula_area *area;
	int err;

	lockdep_assert_held(&node->lock);
	/* What was laid out before is over, whatever becomes of this. */
	insula_area_hang_up(node->area);
	err = insula_area_unmap(node->area);
	if (err)
		return err;
	ringable = insula_ringable_new(node->cpus, node->cpus_count);
	if (!ringable)
		return -ENOMEM;
	area = insula_area_create(place, ringable);
	if (IS_ERR(area)) {
		kfree(ringable);
		return PTR_ERR(area);
	}
	insula_lending_put(node->lending);
	WRITE_ONCE(node->lending, NULL);
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
		.memory = phys_to_virt(channels->start),
		.count = channels->count,
		.slots = channels->slots,
		.keeper = node->memory,
	};
	return lay_out_channels(node, &place);
}

static int lay_out_desks(struct insula_node *node, const struct insula_desks_place *place)
{
	struct insula_ringable *ringable;
	struct insula_desks *desks;

	ringable = insula_ringable_new(node->cpus, node->cpus_count);
	if (!ringable)
		return -ENOMEM;
	desks = insula_desks_create(place, ringable);
	if (IS_ERR(desks)) {
		kfree(ringable);
		return PTR_ERR(desks);
	}
	insula_desks_hang_up(node->desks);
	insula_desks_put(node->desks);
	node->desks = desks;
	return 0;
}

int insula_node_lay_out_desks(struct insula_node *node, const struct insula_delegation *delegation)
{
	struct insula_desks_place place;

	if (delegation->reserved || delegation->pages < INSULA_LWK_PAGES_MIN ||
	    delegation->pages > INSULA_LWK_PAGES_MAX || !PAGE_ALIGNED(delegation->start) ||
	    !insula_memory_covers(node->memory, delegation->start,
				  (u64)delegation->pages * PAGE_SIZE))
		return -EINVAL;
	if (node->state != INSULA_CREATING)
		return -EBUSY;
	place = (struct insula_desks_place) {
		.start = delegation->start,
		.pages = delegation->pages,
		.memory = node->memory,
	};
	return lay_out_desks(node, &place);
}
