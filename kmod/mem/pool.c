// SPDX-License-Identifier: GPL-2.0-only
/*
 * The pool: memory and cores taken from the base ahead of need, to speed up starts. Its memory
 * is cleared when it is added. What a node takes from the pool returns to it; releasing the
 * pool returns free resources to the base at once, and the rest when their nodes are removed.
 *
 * This file manages the memory; core.c the cores.
 */
#include "insula_module.h"

#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/slab.h>

#include "cpu/core.h"
#include "mem/pool.h"
#include "mem/quarantine.h"

struct free_extent {
	struct list_head link;
	struct insula_extent extent;
};

static struct {
	struct mutex lock;	/* all below */
	struct list_head free;
	insula_pool_generation generation;
	u64 total;
	u64 free_size;
} pool = {
	.lock = __MUTEX_INITIALIZER(pool.lock),
	.free = LIST_HEAD_INIT(pool.free),
	.generation = 1,
};

static int pool_add_free(struct list_head *list, phys_addr_t start, u64 size)
{
	struct free_extent *free = kmalloc(sizeof(*free), GFP_KERNEL);

	if (!free)
		return -ENOMEM;
	free->extent = (struct insula_extent) { .start = start, .size = size };
	list_add_tail(&free->link, list);
	return 0;
}

static void pool_free_all(struct list_head *list)
{
	struct free_extent *free, *next;

	list_for_each_entry_safe(free, next, list, link) {
		insula_contig_free(free->extent.start, free->extent.size);
		list_del(&free->link);
		kfree(free);
	}
}

static int pool_fill(const struct insula_request *request, struct list_head *list)
{
	u64 left = request->size, most = left;
	struct insula_extent extent;
	int err;

	if (!insula_contig_alloc_plausible(left))
		return -ENOMEM;
	while (left) {
		err = insula_contig_alloc(request, min(left, most), &extent);
		if (err)
			return err;
		err = pool_add_free(list, extent.start, extent.size);
		if (err) {
			insula_contig_free(extent.start, extent.size);
			return err;
		}
		left -= extent.size;
		most = extent.size;
	}
	return 0;
}

int insula_pool_reserve(const struct insula_pool *wanted, const u32 *cpus)
{
	LIST_HEAD(allocated);
	int err = 0;

	if (wanted->memory.size)
		err = pool_fill(&wanted->memory, &allocated);
	if (!err)
		err = insula_cores_reserve(cpus, wanted->cpus_count);
	if (err) {
		pool_free_all(&allocated);
		return err;
	}
	mutex_lock(&pool.lock);
	list_splice_tail(&allocated, &pool.free);
	pool.total += wanted->memory.size;
	pool.free_size += wanted->memory.size;
	mutex_unlock(&pool.lock);
	return 0;
}

int insula_pool_release(void)
{
	LIST_HEAD(released);

	mutex_lock(&pool.lock);
	list_splice_init(&pool.free, &released);
	pool.total = 0;
	pool.free_size = 0;
	pool.generation++;
	mutex_unlock(&pool.lock);
	pool_free_all(&released);
	return insula_cores_release();
}

/*
 * Part of an extent within the request's bounds. The bound is compared before it is rounded up:
 * beyond the extent's end rounding could wrap to 0.
 */
static struct insula_extent pool_allowed_part(const struct insula_request *request,
					      const struct insula_extent *extent)
{
	u64 unit = insula_request_unit(request);
	u64 low = max_t(u64, extent->start, request->min_phys);
	u64 high = extent->start + extent->size;

	if (request->max_phys)
		high = min_t(u64, high, request->max_phys);
	high = ALIGN_DOWN(high, unit);
	if (low >= high || (request->numa_node != INSULA_NUMA_ANY &&
			    request->numa_node != pfn_to_nid(PHYS_PFN(extent->start))))
		return (struct insula_extent) { };
	low = ALIGN(low, unit);
	return (struct insula_extent) { .start = low, .size = high > low ? high - low : 0 };
}

/* Smallest free extent that is large enough, else the largest; NULL if none is allowed. */
static struct free_extent *pool_best_fit(const struct insula_request *request, u64 size)
{
	struct free_extent *free, *best = NULL;
	u64 part, best_part = 0;

	list_for_each_entry(free, &pool.free, link) {
		part = pool_allowed_part(request, &free->extent).size;
		if (part >= size ? best_part < size || part < best_part :
				   best_part < size && part > best_part) {
			best = free;
			best_part = part;
		}
	}
	return best_part ? best : NULL;
}

/* Cut [start, start + size) out of a free extent; what remains stays free. */
static int pool_cut(struct free_extent *free, phys_addr_t start, u64 size)
{
	u64 before = start - free->extent.start;
	u64 after = free->extent.size - before - size;
	int err;

	lockdep_assert_held(&pool.lock);
	if (before && after) {
		err = pool_add_free(&pool.free, start + size, after);
		if (err)
			return err;
		free->extent.size = before;
	} else if (before) {
		free->extent.size = before;
	} else if (after) {
		free->extent.start = start + size;
		free->extent.size = after;
	} else {
		list_del(&free->link);
		kfree(free);
	}
	pool.free_size -= size;
	return 0;
}

int insula_pool_alloc(const struct insula_request *request, u64 most,
		      struct insula_extent *extent, insula_pool_generation *generation)
{
	struct insula_extent part;
	struct free_extent *free;
	u64 size = most;
	int err = -ENOMEM;

	if (request->chunk_max)
		size = min(size, request->chunk_max);
	mutex_lock(&pool.lock);
	free = pool_best_fit(request, size);
	if (free) {
		part = pool_allowed_part(request, &free->extent);
		extent->size = min(size, part.size);
		extent->start = part.start + part.size - extent->size;
		*generation = pool.generation;
		err = pool_cut(free, extent->start, extent->size);
	}
	mutex_unlock(&pool.lock);
	return err;
}

/* Merge with an adjacent free extent, to limit fragmentation. */
static bool pool_join(phys_addr_t start, u64 size)
{
	struct free_extent *free;

	list_for_each_entry(free, &pool.free, link) {
		if (free->extent.start + free->extent.size == start) {
			free->extent.size += size;
			return true;
		}
		if (start + size == free->extent.start) {
			free->extent.start = start;
			free->extent.size += size;
			return true;
		}
	}
	return false;
}

/* A pinned extent must not be given to another node: it leaves the pool. */
static bool pool_keep(const struct insula_extent *extent)
{
	lockdep_assert_held(&pool.lock);
	return insula_unpinned(extent) &&
	       (pool_join(extent->start, extent->size) ||
		!pool_add_free(&pool.free, extent->start, extent->size));
}

void insula_pool_free(const struct insula_extent *extent, insula_pool_generation generation)
{
	bool kept = false;

	mutex_lock(&pool.lock);
	if (generation == pool.generation) {
		kept = pool_keep(extent);
		if (kept)
			pool.free_size += extent->size;
		else
			pool.total -= extent->size;
	}
	mutex_unlock(&pool.lock);
	if (!kept)
		insula_contig_free(extent->start, extent->size);
}

void insula_pool_count(u64 *total, u64 *free)
{
	mutex_lock(&pool.lock);
	*total = pool.total;
	*free = pool.free_size;
	mutex_unlock(&pool.lock);
}
