// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pages that others hold. A page that is in no process any more may still be the target
 * of I/O: get_user_pages() takes a reference, and only the count of these tells. Most end
 * within milliseconds; a pipe (vmsplice) or a buffer registered with io_uring may hold a
 * page for ever. Such pages are never given on: they wait here, and are looked at now
 * and then.
 */
#include "held.h"

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

static void sweep(struct work_struct *work);

static DEFINE_XARRAY(withheld);		/* pages, by frame number */
static atomic64_t withheld_pages = ATOMIC64_INIT(0);
static DECLARE_DELAYED_WORK(sweeping, sweep);

static bool held(struct page *page)
{
	return page_ref_count(page) != 1;
}

bool insula_unheld(const struct insula_extent *extent)
{
	unsigned long pfn = PHYS_PFN(extent->start), count = extent->size >> PAGE_SHIFT;

	while (count--)
		if (held(pfn_to_page(pfn++)))
			return false;
	return true;
}

bool insula_await_unheld(const struct insula_extent *extent, unsigned long deadline)
{
	unsigned long pfn = PHYS_PFN(extent->start), count = extent->size >> PAGE_SHIFT, i;

	for (i = 0; i < count; i++) {
		while (held(pfn_to_page(pfn + i))) {
			if (time_after(jiffies, deadline))
				return false;
			usleep_range(POLL_US, 2 * POLL_US);
		}
		if (!(i % GRANULE_PAGES))
			cond_resched();
	}
	return true;
}

struct insula_extent insula_held_alike(const struct insula_extent *extent)
{
	struct insula_extent granule = { .start = extent->start, .size = INSULA_GRANULE };
	bool unheld = insula_unheld(&granule);

	do {
		granule.start += INSULA_GRANULE;
	} while (granule.start < extent->start + extent->size &&
		 insula_unheld(&granule) == unheld);
	return (struct insula_extent) {
		.start = extent->start,
		.size = granule.start - extent->start,
	};
}

static void sweep(struct work_struct *work)
{
	unsigned long pfn;
	struct page *page;

	xa_for_each(&withheld, pfn, page) {
		if (held(page))
			continue;
		xa_erase(&withheld, pfn);
		atomic64_dec(&withheld_pages);
		clear_page(page_address(page));
		__free_page(page);
	}
	if (!xa_empty(&withheld))
		schedule_delayed_work(&sweeping, SWEEP_PERIOD);
}

void insula_withhold(struct page *page)
{
	/* Without memory to remember it by: the base has it back as soon as it is let go of. */
	if (xa_err(xa_store(&withheld, page_to_pfn(page), page, GFP_KERNEL))) {
		__free_page(page);
		return;
	}
	atomic64_inc(&withheld_pages);
	schedule_delayed_work(&sweeping, SWEEP_PERIOD);
}

u64 insula_withheld(void)
{
	return (u64)atomic64_read(&withheld_pages) << PAGE_SHIFT;
}

void insula_withheld_exit(void)
{
	unsigned long pfn;
	struct page *page;

	cancel_delayed_work_sync(&sweeping);
	xa_for_each(&withheld, pfn, page)
		__free_page(page);
	xa_destroy(&withheld);
}
