/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_CHUNK_LIST_H
#define INSULA_CHUNK_LIST_H

#include <linux/spinlock.h>

#include "chunk.h"
#include "insula_module.h"

/*
 * Chunks one behind the other, found by their offset from the first one's start or by
 * where they lie. Changed by one at a time, looked at by anybody meanwhile.
 */
struct insula_chunk_list {
	spinlock_t lock;	/* all below, while it is changed */
	struct insula_owned *chunks;
	u32 count;
	u32 capacity;
	u64 size;		/* bytes of all */
};

/* Empty. Freeing it leaves alone what the chunks stand for. */
void insula_chunk_list_init(struct insula_chunk_list *list);
void insula_chunk_list_free(struct insula_chunk_list *list);

/* See to it that so many more can be appended. -ENOMEM. */
int insula_chunk_list_reserve(struct insula_chunk_list *list, u32 more);

/* Put chunks behind the others, all at once; there is room for them. */
void insula_chunk_list_append(struct insula_chunk_list *list, const struct insula_owned *chunks,
			      u32 count);

/* Move all to a list that is empty. */
void insula_chunk_list_move(struct insula_chunk_list *from, struct insula_chunk_list *to);

/*
 * Take the last `count` chunks off, or all if there are fewer: how many. They are still to
 * be found where the list ends now, until it is changed again.
 */
u32 insula_chunk_list_cut(struct insula_chunk_list *list, u32 count);

/* Copy a chunk: number `index`, the one at an offset, the one in which an address lies. */
bool insula_chunk_list_get(struct insula_chunk_list *list, u32 index, struct insula_owned *chunk);
bool insula_chunk_list_at(struct insula_chunk_list *list, u64 offset, struct insula_owned *chunk);
bool insula_chunk_list_of(struct insula_chunk_list *list, phys_addr_t address,
			  struct insula_owned *chunk);

#endif
