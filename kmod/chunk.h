/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_CHUNK_H
#define INSULA_CHUNK_H

#include "insula_module.h"
#include "pool.h"
#include "take.h"

/* I/O under way on pages that are taken back has this long in all, in jiffies. */
#define INSULA_LET_GO	(HZ / 5)

enum insula_source { INSULA_FROM_BASE, INSULA_FROM_POOL, INSULA_FROM_LOW };

/* A chunk of an object, and where it came from. */
struct insula_owned {
	u64 offset;		/* of its first byte in the list that it is in */
	struct insula_extent extent;
	enum insula_source source;
	insula_pool_stamp stamp;
};

struct insula_chunk_list;

/* Take what is asked for to a list; on an error a part of it may have been. */
int insula_chunks_take(const struct insula_request *request, struct insula_chunk_list *list);

/*
 * Give chunks back, cleared. They are mapped nowhere; pages that somebody does I/O on are
 * waited for, and withheld in the end. Sleeps.
 */
void insula_chunks_give(struct insula_owned *chunks, u32 count);

/* They are in no object any more, and soon perhaps in another. */
void insula_chunks_disown(const struct insula_owned *chunks, u32 count);

/* Memory of all chunks that is not the pool's, in bytes. */
u64 insula_chunks_taken(void);

#endif
