// SPDX-License-Identifier: GPL-2.0-only
/*
 * Allocation of large contiguous memory from the running base, and its return.
 * alloc_contig_range() migrates whatever occupies a range, but needs a promising one. The pages
 * keep their struct page, with one reference each, so that processes can map them and do I/O.
 *
 * Ranges are searched in blocks of INSULA_GRANULE: a block is a candidate if all of its pages
 * are free or, in a second pass, movable, since migration is expensive. Runs of candidates of
 * the requested length are tried first, then ever shorter ones.
 */
#include "insula_module.h"

#include <linux/cpumask.h>
#include <linux/gfp.h>
#include <linux/memory_hotplug.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/mutex.h>
#include <linux/nodemask.h>
#include <linux/page-flags.h>
#include <linux/sched/signal.h>

#include "compat/compat.h"
#include "mem/clear.h"
#include "mem/contig_alloc.h"
#include "mem/quarantine.h"
#include "mem/request.h"

#define GRANULE_PAGES		(INSULA_GRANULE >> PAGE_SHIFT)
/* Memory always left to the base, to stay away from its OOM killer. */
#define BASE_RESERVE		(64ULL << 20)

/*
 * Not ZONE_DMA, which is scarce. Not ZONE_MOVABLE, since io_uring of Linux 6.12 spins when it
 * registers a buffer of such memory.
 */
static bool contig_alloc_zone_allowed(struct zone *zone)
{
	if (!populated_zone(zone))
		return false;
	return zone_idx(zone) == ZONE_NORMAL || zone_idx(zone) == ZONE_DMA32;
}

/* Pages that a block may consist of. */
enum pages { FREE_PAGES, FREE_OR_MOVABLE_PAGES };

/* Checked without locks: may be wrong, then alloc_contig_range() fails. */
static bool contig_alloc_page_promising(struct page *page, struct zone *zone, enum pages pages)
{
	if (!page || page_zone(page) != zone)
		return false;
	if (PageReserved(page) || PageHuge(page))
		return false;
	return !page_ref_count(page) || (pages == FREE_OR_MOVABLE_PAGES && PageLRU(page));
}

static bool contig_alloc_block_promising(unsigned long pfn, struct zone *zone, enum pages pages)
{
	unsigned long i;

	for (i = 0; i < GRANULE_PAGES; i++)
		if (!contig_alloc_page_promising(pfn_to_online_page(pfn + i), zone, pages))
			return false;
	return true;
}

/*
 * One caller at a time: all search the same places, and an alloc_contig_range() that fails
 * because another one isolates part of the range undoes that one's isolation, too
 * (mm/page_alloc.c, label `done`).
 */
static DEFINE_MUTEX(contig_mutex);

static int contig_alloc_try_range(unsigned long pfn, unsigned long count)
{
	int err;

	if (mutex_lock_killable(&contig_mutex))
		return -EINTR;
	err = alloc_contig_range(pfn, pfn + count, INSULA_CONTIG_ORDINARY,
				 GFP_KERNEL | __GFP_NOWARN);
	mutex_unlock(&contig_mutex);
	return err;
}

/* Search from the zone's end, where the base has the fewest long-lived pages. */
static int contig_alloc_in_zone(const struct insula_request *request, struct zone *zone,
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
		    !contig_alloc_block_promising(pfn, zone, pages)) {
			run = 0;
			continue;
		}
		run += GRANULE_PAGES;
		if (run < want || pfn & (unit - 1))
			continue;
		if (!contig_alloc_try_range(pfn, want)) {
			extent->start = PFN_PHYS(pfn);
			extent->size = size;
			return 0;
		}
		run -= GRANULE_PAGES; /* slide: the next block may complete a run */
	}
	return -ENOMEM;
}

static int contig_alloc_size(const struct insula_request *request, u64 size, enum pages pages,
			     struct insula_extent *extent)
{
	int node, zone, err;

	for_each_online_node(node) {
		if (!insula_request_allows_node(request, node))
			continue;
		for (zone = MAX_NR_ZONES - 1; zone >= 0; zone--) {
			struct zone *z = &NODE_DATA(node)->node_zones[zone];

			if (!contig_alloc_zone_allowed(z))
				continue;
			err = contig_alloc_in_zone(request, z, size, pages, extent);
			if (err != -ENOMEM)
				return err;
		}
	}
	return -ENOMEM;
}

/* Whether the base has `size` bytes to spare: trying to allocate more would stall it. */
static bool contig_alloc_plausible(u64 size)
{
	u64 available = (u64)si_mem_available() << PAGE_SHIFT;

	return size <= available && available - size >= BASE_RESERVE;
}

int insula_contig_alloc(const struct insula_request *request, u64 most,
			struct insula_extent *extent)
{
	u64 unit = insula_request_unit(request), size = insula_request_most(request, most);
	int err = -ENOMEM;

	if (!contig_alloc_plausible(most))
		return -ENOMEM;
	while (size >= unit) {
		err = contig_alloc_size(request, size, FREE_PAGES, extent);
		if (err == -ENOMEM)
			err = contig_alloc_size(request, size, FREE_OR_MOVABLE_PAGES, extent);
		if (err != -ENOMEM)
			break;
		size = ALIGN_DOWN(size / 2, unit);
	}
	/* Most distributions' kernels clear memory on allocation. */
	if (!err && !want_init_on_alloc(GFP_KERNEL) && !want_init_on_free())
		insula_clear(extent->start, extent->size);
	return err;
}

/* Page by page: pinned pages are quarantined. */
void insula_contig_free(const struct insula_extent *extent)
{
	unsigned long pfn = PHYS_PFN(extent->start), end = pfn + (extent->size >> PAGE_SHIFT);

	for (; pfn < end; pfn++) {
		if (page_ref_count(pfn_to_page(pfn)) == 1)
			__free_page(pfn_to_page(pfn));
		else
			insula_quarantine_add(pfn_to_page(pfn));
		if (!(pfn % GRANULE_PAGES))
			cond_resched();
	}
}
