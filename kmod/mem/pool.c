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
#include "mem/request.h"

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

static int pool_add_free(struct list_head *list, const struct insula_extent *extent)
{
	struct free_extent *free = kmalloc(sizeof(*free), GFP_KERNEL);

	if (!free)
		return -ENOMEM;
	free->extent = *extent;
	list_add_tail(&free->link, list);
	return 0;
}

static void pool_free_all(struct list_head *list)
{
	struct free_extent *free, *next;

	list_for_each_entry_safe(free, next, list, link) {
		insula_contig_free(&free->extent);
		list_del(&free->link);
		kfree(free);
	}
}

static int pool_fill(const struct insula_request *request, struct list_head *list)
{
	u64 left = request->size, most = left;
	struct insula_extent extent;
	int err;

	while (left) {
		err = insula_contig_alloc(request, min(left, most), &extent);
		if (err)
			return err;
		err = pool_add_free(list, &extent);
		if (err) {
			insula_contig_free(&extent);
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
	if (low >= high ||
	    !insula_request_allows_node(request, pfn_to_nid(PHYS_PFN(extent->start))))
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

/* Cut an extent out of a free one; what remains stays free. */
static int pool_cut(struct free_extent *free, const struct insula_extent *cut)
{
	u64 before = cut->start - free->extent.start;
	struct insula_extent after = {
		.start = cut->start + cut->size,
		.size = free->extent.size - before - cut->size,
	};
	int err;

	lockdep_assert_held(&pool.lock);
	if (before && after.size) {
		err = pool_add_free(&pool.free, &after);
		if (err)
			return err;
		free->extent.size = before;
	} else if (before) {
		free->extent.size = before;
	} else if (after.size) {
		free->extent = after;
	} else {
		list_del(&free->link);
		kfree(free);
	}
	pool.free_size -= cut->size;
	return 0;
}

insula_pool_generation insula_pool_alloc(const struct insula_request *request, u64 most,
					 struct insula_extent *extent)
{
	insula_pool_generation generation = 0;
	u64 size = insula_request_most(request, most);
	struct insula_extent part;
	struct free_extent *free;

	mutex_lock(&pool.lock);
	free = pool_best_fit(request, size);
	if (free) {
		part = pool_allowed_part(request, &free->extent);
		extent->size = min(size, part.size);
		extent->start = part.start + part.size - extent->size;
		generation = pool_cut(free, extent) ? 0 : pool.generation;
	}
	mutex_unlock(&pool.lock);
	return generation;
}

/* Merge with an adjacent free extent, to limit fragmentation. */
static bool pool_join(const struct insula_extent *extent)
{
	struct free_extent *free;

	list_for_each_entry(free, &pool.free, link) {
		if (free->extent.start + free->extent.size == extent->start) {
			free->extent.size += extent->size;
			return true;
		}
		if (extent->start + extent->size == free->extent.start) {
			free->extent.start = extent->start;
			free->extent.size += extent->size;
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
	       (pool_join(extent) || !pool_add_free(&pool.free, extent));
}

bool insula_pool_free(const struct insula_extent *extent, insula_pool_generation generation)
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
	return kept;
}

void insula_pool_count(u64 *total, u64 *free)
{
	mutex_lock(&pool.lock);
	*total = pool.total;
	*free = pool.free_size;
	mutex_unlock(&pool.lock);
}
