// SPDX-License-Identifier: GPL-2.0-only
/*
 * Chunks of memory objects: here is decided whether memory comes from lowmem, the pool or the
 * base, and where it returns to.
 */
#include "mem/chunk.h"

#include <linux/atomic.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/pagemap.h>

#include "mem/chunk_list.h"
#include "mem/clear.h"
#include "mem/lowmem.h"
#include "mem/quarantine.h"
#include "mem/request.h"

static atomic64_t allocated = ATOMIC64_INIT(0);

u64 insula_chunks_allocated(void)
{
	return atomic64_read(&allocated);
}

/* Clear the mapping of pages that leave their object. */
static void chunk_detach(const struct insula_extent *extent)
{
	unsigned long pfn = PHYS_PFN(extent->start), end = pfn + (extent->size >> PAGE_SHIFT);
	struct page *page;

	for (; pfn < end; pfn++) {
		page = pfn_to_page(pfn);
		if (!page->mapping)
			continue;
		/* I/O that ends just now may mark it dirty, under the page lock. */
		lock_page(page);
		page->mapping = NULL;
		unlock_page(page);
	}
}

void insula_chunks_detach(const struct insula_chunk_entry *chunks, u32 count)
{
	while (count--)
		chunk_detach(&chunks[count].extent);
}

static void chunk_free_part(const struct insula_chunk_entry *chunk,
			    const struct insula_extent *part)
{
	insula_clear(part->start, part->size);
	if (insula_pool_free(part, chunk->pool))
		return;
	insula_contig_free(part);
	if (!chunk->pool)
		atomic64_sub(part->size, &allocated);
}

/* Free a chunk that is not mapped. Parts pinned past the deadline are freed separately. */
static void chunk_free(const struct insula_chunk_entry *chunk, unsigned long deadline)
{
	struct insula_extent rest = chunk->extent, part;

	if (insula_chunk_is_lowmem(chunk)) {
		insula_lowmem_free(rest.start, rest.size);
		return;
	}
	insula_wait_unpinned(&rest, deadline);
	chunk_detach(&rest);
	while (rest.size) {
		part = insula_pinned_run(&rest);
		chunk_free_part(chunk, &part);
		rest.start += part.size;
		rest.size -= part.size;
	}
}

void insula_chunks_free(struct insula_chunk_entry *chunks, u32 count)
{
	unsigned long deadline = jiffies + INSULA_UNPIN_TIMEOUT;

	while (count--)
		chunk_free(&chunks[count], deadline);
}

static int chunk_alloc(const struct insula_request *request, u64 most,
		       struct insula_chunk_entry *chunk)
{
	int err;

	*chunk = (struct insula_chunk_entry) { };
	if (insula_request_is_lowmem(request)) {
		chunk->extent.size = most;
		return insula_lowmem_alloc(most, request->min_phys, request->max_phys, 0,
					   &chunk->extent.start);
	}
	chunk->pool = insula_pool_alloc(request, most, &chunk->extent);
	if (chunk->pool)
		return 0;
	err = insula_contig_alloc(request, most, &chunk->extent);
	if (!err)
		atomic64_add(chunk->extent.size, &allocated);
	return err;
}

int insula_chunks_alloc(const struct insula_request *request, struct insula_chunk_list *list)
{
	u64 left = request->size, most = left;
	struct insula_chunk_entry chunk;
	int err;

	while (left) {
		err = insula_chunk_list_reserve(list, 1);
		if (!err)
			err = chunk_alloc(request, min(left, most), &chunk);
		if (err)
			return err;
		insula_chunk_list_append(list, &chunk, 1);
		left -= chunk.extent.size;
		/* Do not retry sizes that the base could not provide. */
		if (!chunk.pool)
			most = chunk.extent.size;
	}
	return 0;
}
