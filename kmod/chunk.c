// SPDX-License-Identifier: GPL-2.0-only
/*
 * The chunks of memory objects: taken from the pool, from the base or from below 1 MiB,
 * and given back to where they came from.
 */
#include "chunk.h"

#include <linux/atomic.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/pagemap.h>

#include "chunk_list.h"
#include "clear.h"
#include "held.h"
#include "low.h"

static atomic64_t taken = ATOMIC64_INIT(0);

u64 insula_chunks_taken(void)
{
	return atomic64_read(&taken);
}

/* Its pages are in no object any more. */
static void disown(const struct insula_extent *extent)
{
	unsigned long pfn = PHYS_PFN(extent->start), end = pfn + (extent->size >> PAGE_SHIFT);
	struct page *page;

	for (; pfn < end; pfn++) {
		page = pfn_to_page(pfn);
		if (!page->mapping)
			continue;
		/* Who does I/O on it may be about to mark it dirty, with the page locked. */
		lock_page(page);
		page->mapping = NULL;
		unlock_page(page);
	}
}

void insula_chunks_disown(const struct insula_owned *chunks, u32 count)
{
	while (count--)
		disown(&chunks[count].extent);
}

static void give_part(const struct insula_owned *chunk, const struct insula_extent *part)
{
	insula_clear(part->start, part->size);
	if (chunk->source == INSULA_FROM_POOL) {
		insula_pool_give(part, chunk->stamp);
		return;
	}
	insula_give(part->start, part->size);
	atomic64_sub(part->size, &taken);
}

/* It is mapped nowhere. What is held until after the deadline is parted from the rest. */
static void give_chunk(const struct insula_owned *chunk, unsigned long deadline)
{
	struct insula_extent rest = chunk->extent, part;

	if (chunk->source == INSULA_FROM_LOW) {
		insula_low_return(rest.start, rest.size);
		return;
	}
	insula_await_unheld(&rest, deadline);
	disown(&rest);
	while (rest.size) {
		part = insula_held_alike(&rest);
		give_part(chunk, &part);
		rest.start += part.size;
		rest.size -= part.size;
	}
}

void insula_chunks_give(struct insula_owned *chunks, u32 count)
{
	unsigned long deadline = jiffies + INSULA_LET_GO;

	while (count--)
		give_chunk(&chunks[count], deadline);
}

static int take_chunk(const struct insula_request *request, u64 most, struct insula_owned *chunk)
{
	int err;

	if (request->max_phys && request->max_phys <= INSULA_LOW_LIMIT) {
		chunk->source = INSULA_FROM_LOW;
		chunk->extent.size = most;
		return insula_low_take(most, request->min_phys, request->max_phys, 0,
				       &chunk->extent.start);
	}
	chunk->source = INSULA_FROM_POOL;
	if (!insula_pool_take(request, most, &chunk->extent, &chunk->stamp))
		return 0;
	if (!insula_take_plausible(most))
		return -ENOMEM;
	chunk->source = INSULA_FROM_BASE;
	err = insula_take(request, most, &chunk->extent);
	if (!err)
		atomic64_add(chunk->extent.size, &taken);
	return err;
}

int insula_chunks_take(const struct insula_request *request, struct insula_chunk_list *list)
{
	u64 left = request->size, most = left;
	struct insula_owned chunk;
	int err;

	while (left) {
		err = insula_chunk_list_reserve(list, 1);
		if (!err)
			err = take_chunk(request, min(left, most), &chunk);
		if (err)
			return err;
		insula_chunk_list_append(list, &chunk, 1);
		left -= chunk.extent.size;
		/* What the base could not give once is not worth looking for again. */
		if (chunk.source == INSULA_FROM_BASE)
			most = chunk.extent.size;
	}
	return 0;
}
