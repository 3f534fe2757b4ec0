// SPDX-License-Identifier: GPL-2.0-only
/*
 * Quarantine of pinned pages. A page that no process maps any more may still be the target of
 * I/O: get_user_pages() takes a reference, visible only in the reference count. Most I/O ends
 * within milliseconds; a pipe (vmsplice) or a buffer registered with io_uring may pin a page
 * forever. Such pages are not reused: they are kept here and checked periodically.
 */
#include "mem/quarantine.h"

#include <linux/delay.h>
#include <linux/gfp.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#define GRANULE_PAGES	(INSULA_GRANULE >> PAGE_SHIFT)
#define POLL_US		50
#define SWEEP_PERIOD	(HZ / 4)

static void quarantine_sweep(struct work_struct *work);

static DEFINE_XARRAY(quarantine);		/* pages, by frame number */
static atomic64_t quarantined_pages = ATOMIC64_INIT(0);
static DECLARE_DELAYED_WORK(sweep_work, quarantine_sweep);

static bool quarantine_is_pinned(struct page *page)
{
	return page_ref_count(page) != 1;
}

bool insula_unpinned(const struct insula_extent *extent)
{
	unsigned long pfn = PHYS_PFN(extent->start), count = extent->size >> PAGE_SHIFT;

	while (count--)
		if (quarantine_is_pinned(pfn_to_page(pfn++)))
			return false;
	return true;
}

bool insula_wait_unpinned(const struct insula_extent *extent, unsigned long deadline)
{
	unsigned long pfn = PHYS_PFN(extent->start), count = extent->size >> PAGE_SHIFT, i;

	for (i = 0; i < count; i++) {
		while (quarantine_is_pinned(pfn_to_page(pfn + i))) {
			if (time_after(jiffies, deadline))
				return false;
			usleep_range(POLL_US, 2 * POLL_US);
		}
		if (!(i % GRANULE_PAGES))
			cond_resched();
	}
	return true;
}

struct insula_extent insula_pinned_run(const struct insula_extent *extent)
{
	struct insula_extent granule = { .start = extent->start, .size = INSULA_GRANULE };
	bool unpinned = insula_unpinned(&granule);

	do {
		granule.start += INSULA_GRANULE;
	} while (granule.start < extent->start + extent->size &&
		 insula_unpinned(&granule) == unpinned);
	return (struct insula_extent) {
		.start = extent->start,
		.size = granule.start - extent->start,
	};
}

static void quarantine_sweep(struct work_struct *work)
{
	unsigned long pfn;
	struct page *page;

	xa_for_each(&quarantine, pfn, page) {
		if (quarantine_is_pinned(page))
			continue;
		xa_erase(&quarantine, pfn);
		atomic64_dec(&quarantined_pages);
		clear_page(page_address(page));
		__free_page(page);
	}
	if (!xa_empty(&quarantine))
		schedule_delayed_work(&sweep_work, SWEEP_PERIOD);
}

void insula_quarantine_add(struct page *page)
{
	/* Without memory to record it, free it: the base reuses it only after the last put. */
	if (xa_err(xa_store(&quarantine, page_to_pfn(page), page, GFP_KERNEL))) {
		__free_page(page);
		return;
	}
	atomic64_inc(&quarantined_pages);
	schedule_delayed_work(&sweep_work, SWEEP_PERIOD);
}

u64 insula_quarantine_size(void)
{
	return (u64)atomic64_read(&quarantined_pages) << PAGE_SHIFT;
}

void insula_quarantine_exit(void)
{
	unsigned long pfn;
	struct page *page;

	cancel_delayed_work_sync(&sweep_work);
	xa_for_each(&quarantine, pfn, page)
		__free_page(page);
	xa_destroy(&quarantine);
}
