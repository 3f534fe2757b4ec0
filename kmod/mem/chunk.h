/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_CHUNK_H
#define INSULA_CHUNK_H

#include "insula_module.h"
#include "mem/contig_alloc.h"
#include "mem/pool.h"

/* Time for I/O under way on returned pages to end, in total, in jiffies. */
#define INSULA_UNPIN_TIMEOUT	(HZ / 5)

/* A chunk of an object: of lowmem, from the pool, or from the base. */
struct insula_chunk_entry {
	u64 offset;		/* of its first byte in the list that it is in */
	struct insula_extent extent;
	insula_pool_generation pool;
};

struct insula_chunk_list;

/* Whether it is of lowmem, and so not of ordinary pages. */
static inline bool insula_chunk_is_lowmem(const struct insula_chunk_entry *chunk)
{
	return chunk->extent.start < INSULA_LOWMEM_LIMIT;
}

/* Allocate memory to a list; on an error the list may have part of it. */
int insula_chunks_alloc(const struct insula_request *request, struct insula_chunk_list *list);

/* Clear and return unmapped chunks. Waits for pinned pages, then quarantines them. Sleeps. */
void insula_chunks_free(struct insula_chunk_entry *chunks, u32 count);

/* Clear the mapping of their pages, before they move to another object. */
void insula_chunks_detach(const struct insula_chunk_entry *chunks, u32 count);

/* Memory of all chunks except those from the pool, in bytes. */
u64 insula_chunks_allocated(void);

#endif
