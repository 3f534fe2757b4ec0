/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_CHUNK_LIST_H
#define INSULA_CHUNK_LIST_H

#include <linux/spinlock.h>

#include "insula_module.h"
#include "mem/chunk.h"

/*
 * Consecutive chunks of an object, found by offset or by physical address. One writer at a time,
 * with concurrent readers.
 */
struct insula_chunk_list {
	spinlock_t lock;	/* all below, against readers */
	struct insula_chunk_entry *chunks;
	u32 count;
	u32 capacity;
	u64 size;		/* bytes of all */
};

/* Initialize an empty list. Freeing a list does not free its chunks' memory. */
void insula_chunk_list_init(struct insula_chunk_list *list);
void insula_chunk_list_free(struct insula_chunk_list *list);

/* Reserve room to append `more` chunks. -ENOMEM. */
int insula_chunk_list_reserve(struct insula_chunk_list *list, u32 more);

/* Append chunks in one step, into reserved room. */
void insula_chunk_list_append(struct insula_chunk_list *list,
			      const struct insula_chunk_entry *chunks,
			      u32 count);

/* Move all chunks to an empty list. */
void insula_chunk_list_move(struct insula_chunk_list *from, struct insula_chunk_list *to);

/*
 * Remove the last `count` chunks, or all if there are fewer. Returns their number. The array
 * still has them after its new end, until the list is changed again.
 */
u32 insula_chunk_list_cut(struct insula_chunk_list *list, u32 count);

/* Copy a chunk: by index, by an offset in it, by an address in it. False: there is none. */
bool insula_chunk_list_get(struct insula_chunk_list *list, u32 index,
			   struct insula_chunk_entry *chunk);
bool insula_chunk_list_at(struct insula_chunk_list *list, u64 offset,
			  struct insula_chunk_entry *chunk);
bool insula_chunk_list_of(struct insula_chunk_list *list, phys_addr_t address,
			  struct insula_chunk_entry *chunk);

#endif
