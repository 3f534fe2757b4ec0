/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_CHUNK_H
#define INSULA_CHUNK_H

#include "insula_module.h"
#include "mem/contig_alloc.h"
#include "mem/pool.h"

/* Time for I/O under way on returned pages to end, in total, in jiffies. */
#define INSULA_UNPIN_TIMEOUT	(HZ / 5)

enum insula_source { INSULA_FROM_BASE, INSULA_FROM_POOL, INSULA_FROM_LOWMEM };

/* A chunk of an object, and its source. */
struct insula_chunk_entry {
	u64 offset;		/* of its first byte in the list that it is in */
	struct insula_extent extent;
	enum insula_source source;
	insula_pool_generation generation;
};

struct insula_chunk_list;

/* Allocate memory to a list; on an error the list may have part of it. */
int insula_chunks_alloc(const struct insula_request *request, struct insula_chunk_list *list);

/* Clear and return unmapped chunks. Waits for pinned pages, then quarantines them. Sleeps. */
void insula_chunks_free(struct insula_chunk_entry *chunks, u32 count);

/* Clear the mapping of their pages, before they move to another object. */
void insula_chunks_detach(const struct insula_chunk_entry *chunks, u32 count);

/* Memory of all chunks except those from the pool, in bytes. */
u64 insula_chunks_allocated(void);

#endif
