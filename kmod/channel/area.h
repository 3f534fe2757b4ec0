/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_AREA_H
#define INSULA_AREA_H

#include <linux/fs.h>
#include <linux/kref.h>
#include <linux/rwsem.h>

#include "channel/endpoint.h"
#include "insula_channel.h"
#include "insula_module.h"

struct insula_ringable;

/* Location and layout of an area. */
struct insula_area_place {
	phys_addr_t start;
	void *memory;		/* the same, mapped. NULL: of a copy, mapped when it is used */
	u32 count;
	u32 slots;
	struct file *object;	/* memory object that it lies in, held by the area; or NULL */
	u64 *permits;		/* of its endpoints' doorbells, in a monitor's memory; or NULL */
	struct file *permits_object;	/* that memory, held by the area; or NULL */
};

/*
 * Channel area: all channels between the base and one node, as seen from either side.
 * Descriptors of endpoints hold references, so it may outlive its creator.
 */
struct insula_area {
	struct kref refs;		/* its creator's, and of open endpoints */
	struct insula_area_place place;
	struct insula_area_header *header;	/* in shared memory */
	bool base;			/* this side is the base */
	bool disconnected;		/* the other side has ended */
	struct rw_semaphore mapping;	/* read: map a page of rings; write: unmap all */
	struct page *scratch;		/* NULL, or mapped instead of rings */
	struct insula_ringable __rcu *ringable;	/* NULL: any core may be rung */
	struct insula_endpoint endpoints[];
};

/* Validate the number of channels and of slots: 0 or -EINVAL. */
int insula_area_check(u32 count, u32 slots);

/*
 * Create the base's side and initialize the area's header; that of a copy has the content of the
 * original's. Takes ownership of `ringable`, the cores that may be rung, on success.
 * ERR_PTR(-ENOMEM), or an error of insula_memory_address().
 */
struct insula_area *insula_area_create(const struct insula_area_place *place,
				       struct insula_ringable *ringable);

/* Replace the cores that may be rung. Takes ownership of `ringable`. One caller at a time. */
void insula_area_set_ringable(struct insula_area *area, struct insula_ringable *ringable);

/* Create the node's side. ERR_PTR(-ENOMEM). */
struct insula_area *insula_area_join(const struct insula_area_place *place);

/* The other side has ended: stop using its memory. NULL is allowed. */
void insula_area_disconnect(struct insula_area *area);
/*
 * After insula_area_disconnect(), before its memory is reused: replace all mappings of rings by
 * a scratch page. -ENOMEM. NULL is allowed.
 */
int insula_area_unmap(struct insula_area *area);
void insula_area_get(struct insula_area *area);
void insula_area_put(struct insula_area *area);

/* In the base: APIC ids of the node's cores, at most `capacity`. Returns their number. */
u32 insula_area_cores(const struct insula_area *area, u32 *apic_ids, u32 capacity);

/* In the base: pointer to the flags set by the node's kernel, INSULA_AREA_*. NULL for NULL. */
const u32 *insula_area_node_flags(const struct insula_area *area);

/* In a node: set these flags. */
void insula_area_set_node_flags(struct insula_area *area, u32 flags);

#endif
