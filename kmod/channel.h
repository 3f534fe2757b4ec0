/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_CHANNEL_END_H
#define INSULA_CHANNEL_END_H

#include <linux/fs.h>

#include "insula_channel.h"
#include "insula_module.h"

/*
 * The channels between the base and one node, seen from either side. Descriptors of
 * ends hold them, so they outlive who made them.
 */
struct insula_area;
struct insula_ringable;

/* What an area is made of. */
struct insula_area_place {
	phys_addr_t start;
	void *memory;		/* the same, mapped */
	u32 count;
	u32 slots;
	struct file *keeper;	/* memory object, held as long as it is in use, or NULL */
};

int insula_channels_init(void);
void insula_channels_exit(void);

/* 0 if an area can have that many channels of that many slots, else -EINVAL. */
int insula_area_check(u32 count, u32 slots);

/*
 * The base's side: write what is in the area to its first page. Takes the cores that may
 * be rung over, on success only. ERR_PTR(-ENOMEM).
 */
struct insula_area *insula_area_create(const struct insula_area_place *place,
				       struct insula_ringable *ringable);

/* Other cores may be rung from now on. Takes them over. One caller at a time. */
void insula_area_change(struct insula_area *area, struct insula_ringable *ringable);

/* The node's side. ERR_PTR(-ENOMEM). */
struct insula_area *insula_area_join(const struct insula_area_place *place);

/* The other side is gone for good: its memory is touched no more. NULL is none. */
void insula_area_hang_up(struct insula_area *area);
/*
 * It has been hung up, and its memory is to be used for something else: whoever has mapped
 * rings sees and changes them no more, but a page without meaning. -ENOMEM. NULL is none.
 */
int insula_area_unmap(struct insula_area *area);
void insula_area_get(struct insula_area *area);
void insula_area_put(struct insula_area *area);

/* In the base: the cores of the node, at most so many of them; how many. */
u32 insula_area_cores(const struct insula_area *area, u32 *apic_ids, u32 capacity);

/* In the base: where the node's kernel tells of itself, INSULA_AREA_*. NULL for none. */
const u32 *insula_area_told(const struct insula_area *area);

/* In a node: tell it. */
void insula_area_tell(struct insula_area *area, u32 flags);

/* INSULA_CHANNEL_OPEN, its argument in user space: answers a descriptor. */
int insula_channel_open(struct insula_area *area, void __user *argument);

#endif
