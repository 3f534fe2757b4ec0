// SPDX-License-Identifier: GPL-2.0-only
/*
 * Taking memory from the running base, in large contiguous pieces, and giving it
 * back. alloc_contig_range() moves away whatever occupies a range; what it wants
 * is a range worth trying. The pages keep their struct page, one reference each,
 * so that a process can map them and do I/O on them.
 *
 * A range is looked for in blocks of INSULA_GRANULE: a block is a candidate if
 * every page of it is free or, on a second look, movable: moving is what costs.
 * Runs of candidates as long as wanted are tried first, then ever shorter ones.
 */
#include "insula_module.h"

#include <linux/cpumask.h>
#include <linux/gfp.h>
#include <linux/log2.h>
#include <linux/memory_hotplug.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/mutex.h>
#include <linux/nodemask.h>
#include <linux/page-flags.h>
#include <linux/sched/signal.h>

#include "clear.h"
#include "compat/compat.h"
#include "held.h"
#include "take.h"

#define GRANULE_PAGES		(INSULA_GRANULE >> PAGE_SHIFT)
/* Left to the base whatever is asked for: below it, it would start to kill. */
#define BASE_KEEPS		(64ULL << 20)

static bool is_low(const struct insula_request *request)
{
	return request->max_phys && request->max_phys <= INSULA_LOW_LIMIT;
}

static bool blocks_valid(const struct insula_request *request)
{
	return is_power_of_2(request->chunk_max) && request->chunk_max >= INSULA_GRANULE &&
	       !(request->size & (request->chunk_max - 1)) && !is_low(request);
}

u64 insula_request_unit(const struct insula_request *request)
{
	return request->flags & INSULA_REQUEST_BLOCKS ? request->chunk_max : INSULA_GRANULE;
}

int insula_request_check(const struct insula_request *request)
{
	u64 unit = is_low(request) ? PAGE_SIZE : INSULA_GRANULE;

	if (request->flags & ~INSULA_REQUEST_BLOCKS || !request->size || request->size % unit)
		return -EINVAL;
	if (request->chunk_max % unit)
		return -EINVAL;
	if (request->flags & INSULA_REQUEST_BLOCKS && !blocks_valid(request))
		return -EINVAL;
	if (request->max_phys && request->max_phys <= request->min_phys)
		return -EINVAL;
	if (request->numa_node != INSULA_NUMA_ANY &&
	    (request->numa_node < 0 || request->numa_node >= MAX_NUMNODES ||
	     !node_online(request->numa_node)))
		return -EINVAL;
	return 0;
}

bool insula_request_allows(const struct insula_request *request, phys_addr_t start, u64 size)
{
	if (start < request->min_phys)
		return false;
	return !request->max_phys || start + size <= request->max_phys;
}

static bool node_allowed(const struct insula_request *request, int node)
{
	return request->numa_node == INSULA_NUMA_ANY || request->numa_node == node;
}

/*
 * ZONE_DMA is too precious. ZONE_MOVABLE is left out since io_uring of Linux
 * 6.12 spins when it is to register a buffer of such memory.
 */
static bool zone_allowed(struct zone *zone)
{
	if (!populated_zone(zone))
		return false;
	return zone_idx(zone) == ZONE_NORMAL || zone_idx(zone) == ZONE_DMA32;
}

/* Which pages a block may consist of. */
enum pages { FREE_PAGES, FREE_OR_MOVABLE_PAGES };

/* A look without locks: it may be wrong, and alloc_contig_range() finds out. */
static bool page_promising(struct page *page, struct zone *zone, enum pages pages)
{
	if (!page || page_zone(page) != zone)
		return false;
	if (PageReserved(page) || PageHuge(page))
		return false;
	return !page_ref_count(page) || (pages == FREE_OR_MOVABLE_PAGES && PageLRU(page));
}

static bool block_promising(unsigned long pfn, struct zone *zone, enum pages pages)
{
	unsigned long i;

	for (i = 0; i < GRANULE_PAGES; i++)
		if (!page_promising(pfn_to_online_page(pfn + i), zone, pages))
			return false;
	return true;
}

/*
 * One at a time: all look for memory in the same places, and alloc_contig_range() that fails
 * since another isolates part of the range ends that one's isolation with its own
 * (mm/page_alloc.c, its label `done`).
 */
static DEFINE_MUTEX(taking);

static int try_range(unsigned long pfn, unsigned long count)
{
	int err;

	if (mutex_lock_killable(&taking))
		return -EINTR;
	err = alloc_contig_range(pfn, pfn + count, INSULA_CONTIG_ORDINARY,
				 GFP_KERNEL | __GFP_NOWARN);
	mutex_unlock(&taking);
	return err;
}

/* From the zone's end, where the base's own long-lived pages are fewest. */
static int take_from_zone(const struct insula_request *request, struct zone *zone,
			  u64 size, enum pages pages, struct insula_extent *extent)
{
	unsigned long unit = insula_request_unit(request) >> PAGE_SHIFT;
	unsigned long want = size >> PAGE_SHIFT, run = 0, pfn, first;

	first = ALIGN(zone->zone_start_pfn, GRANULE_PAGES);
	pfn = ALIGN_DOWN(zone_end_pfn(zone), GRANULE_PAGES);
	while (pfn > first) {
		pfn -= GRANULE_PAGES;
		cond_resched();
		if (fatal_signal_pending(current))
			return -EINTR;
		if (!insula_request_allows(request, PFN_PHYS(pfn), INSULA_GRANULE) ||
		    !block_promising(pfn, zone, pages)) {
			run = 0;
			continue;
		}
		run += GRANULE_PAGES;
		if (run < want || pfn & (unit - 1))
			continue;
		if (!try_range(pfn, want)) {
			extent->start = PFN_PHYS(pfn);
			extent->size = size;
			return 0;
		}
		run -= GRANULE_PAGES; /* slide on: the next block may complete a run */
	}
	return -ENOMEM;
}

static int take_size(const struct insula_request *request, u64 size, enum pages pages,
		     struct insula_extent *extent)
{
	int node, zone, err;

	for_each_online_node(node) {
		if (!node_allowed(request, node))
			continue;
		for (zone = MAX_NR_ZONES - 1; zone >= 0; zone--) {
			struct zone *z = &NODE_DATA(node)->node_zones[zone];

			if (!zone_allowed(z))
				continue;
			err = take_from_zone(request, z, size, pages, extent);
			if (err != -ENOMEM)
				return err;
		}
	}
	return -ENOMEM;
}

int insula_take(const struct insula_request *request, u64 most, struct insula_extent *extent)
{
	u64 unit = insula_request_unit(request), size = most;
	int err = -ENOMEM;

	if (request->chunk_max)
		size = min(size, request->chunk_max);
	while (size >= unit) {
		err = take_size(request, size, FREE_PAGES, extent);
		if (err == -ENOMEM)
			err = take_size(request, size, FREE_OR_MOVABLE_PAGES, extent);
		if (err != -ENOMEM)
			break;
		size = ALIGN_DOWN(size / 2, unit);
	}
	/* Most distributions' kernels have just cleared what they handed out. */
	if (!err && !want_init_on_alloc(GFP_KERNEL) && !want_init_on_free())
		insula_clear(extent->start, extent->size);
	return err;
}

bool insula_take_plausible(u64 size)
{
	u64 available = (u64)si_mem_available() << PAGE_SHIFT;

	return size <= available && available - size >= BASE_KEEPS;
}

/* Page by page: one that some I/O still refers to goes back when that ends. */
void insula_give(phys_addr_t start, u64 size)
{
	unsigned long pfn;

	for (pfn = PFN_DOWN(start); pfn < PFN_DOWN(start + size); pfn++) {
		if (page_ref_count(pfn_to_page(pfn)) == 1)
			__free_page(pfn_to_page(pfn));
		else
			insula_withhold(pfn_to_page(pfn));
		if (!(pfn % GRANULE_PAGES))
			cond_resched();
	}
}
