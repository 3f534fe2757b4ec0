// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tracking of pinned frames. A program's kernel may reuse a frame only when nothing here can
 * access it. Unmapping ends access through a mapping, but I/O under way pins the page, and the
 * mapping no longer tells which. So every mapped frame is recorded, and checked when it is
 * unmapped: if it is pinned then, its number is kept until it is not. New references come from
 * mappings only, so a frame not pinned at its unmapping will not be pinned later.
 *
 * All pages of a node have one reference from the start (contig_alloc.c). Further references
 * are those of mappings, counted by _mapcount, and those of pins.
 */
#include "insula_module.h"

#include <linux/align.h>
#include <linux/bits.h>
#include <linux/errno.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/pfn.h>
#include <linux/slab.h>

#include "delegation/frame_tracker.h"
#include "insula_lwk.h"

#define WINDOW_SIZE	BIT_ULL(INSULA_LWK_MAY_MAP_SHIFT)
#define WINDOW_PAGES	(WINDOW_SIZE / PAGE_SIZE)

/* Frame number + 1 of each mapped page in one window of addresses; 0: not mapped. */
struct window {
	unsigned long frame[WINDOW_PAGES];
};

void insula_frame_tracker_init(struct insula_frame_tracker *tracker)
{
	xa_init(&tracker->windows);
	xa_init(&tracker->pinned);
}

static struct window *frame_tracker_window(struct insula_frame_tracker *tracker, u64 address)
{
	unsigned long index = address / WINDOW_SIZE;
	struct window *window = xa_load(&tracker->windows, index), *other;

	if (window)
		return window;
	window = kzalloc(sizeof(*window), GFP_KERNEL);
	if (!window)
		return NULL;
	/* Another thread may have been faster. */
	other = xa_cmpxchg(&tracker->windows, index, NULL, window, GFP_KERNEL);
	if (!other)
		return window;
	kfree(window);
	return xa_is_err(other) ? NULL : other;
}

/*
 * The two counts are not read atomically: they are valid only if the mappings did not change in
 * between. A false positive is only checked again later.
 */
static bool frame_is_pinned(unsigned long frame)
{
	struct page *page = pfn_to_page(frame);
	int mapped, references;

	do {
		mapped = atomic_read(&page->_mapcount);
		smp_rmb(); /* a mapping is counted after its reference */
		references = page_ref_count(page);
		smp_rmb(); /* and uncounted before the reference is dropped */
	} while (mapped != atomic_read(&page->_mapcount));
	return references - 1 > mapped + 1;
}

/* State of a pinned frame: not waited for yet; waited for in vain. */
#define FRESH	xa_mk_value(0)
#define WAITED	xa_mk_value(1)

/* A frame was unmapped: keep its number if it is pinned. */
static int frame_unmapped(struct insula_frame_tracker *tracker, unsigned long frame, gfp_t gfp)
{
	if (!frame_is_pinned(frame) || xa_load(&tracker->pinned, frame))
		return 0;
	return xa_err(xa_store(&tracker->pinned, frame, FRESH, gfp));
}

int insula_frame_tracker_add(struct insula_frame_tracker *tracker, u64 address, struct page *page)
{
	struct window *window = frame_tracker_window(tracker, address);
	unsigned long *place, old;
	int err = 0;

	if (!window)
		return -ENOMEM;
	place = &window->frame[address % WINDOW_SIZE / PAGE_SIZE];
	old = READ_ONCE(*place);
	/* The program's kernel has mapped another frame there without an invalidation. */
	if (old && old != page_to_pfn(page) + 1)
		err = frame_unmapped(tracker, old - 1, GFP_KERNEL);
	if (!err)
		WRITE_ONCE(*place, page_to_pfn(page) + 1);
	return err;
}

bool insula_frame_tracker_next(struct insula_frame_tracker *tracker, u64 *from, u64 *to, u64 end)
{
	unsigned long index = *from / WINDOW_SIZE;

	if (*from >= end ||
	    !xa_find(&tracker->windows, &index, (end - 1) / WINDOW_SIZE, XA_PRESENT))
		return false;
	*from = max_t(u64, *from, index * WINDOW_SIZE);
	while (xa_load(&tracker->windows, ++index))
		;
	*to = min_t(u64, end, index * WINDOW_SIZE);
	return true;
}

/* Unmap the pages of a window in [from, to), offsets into it. */
static void frame_tracker_unmap_in(struct insula_frame_tracker *tracker, struct window *window,
				   u64 from,
				   u64 to)
{
	unsigned long i;

	for (i = from / PAGE_SIZE; i < to / PAGE_SIZE; i++) {
		if (!window->frame[i])
			continue;
		/* Must not fail: an untracked frame would be reused under I/O. */
		frame_unmapped(tracker, window->frame[i] - 1, GFP_KERNEL | __GFP_NOFAIL);
		window->frame[i] = 0;
	}
}

void insula_frame_tracker_unmapped(struct insula_frame_tracker *tracker, u64 start, u64 end)
{
	struct window *window;
	unsigned long index;
	u64 base, from, to;

	xa_for_each_range(&tracker->windows, index, window, start / WINDOW_SIZE,
			  (end - 1) / WINDOW_SIZE) {
		base = index * WINDOW_SIZE;
		from = max(start, base) - base;
		to = min(end, base + WINDOW_SIZE) - base;
		frame_tracker_unmap_in(tracker, window, from, to);
		if (to - from == WINDOW_SIZE) {
			xa_erase(&tracker->windows, index);
			kfree(window);
		}
	}
}

bool insula_frame_tracker_poll_pinned(struct insula_frame_tracker *tracker, bool give_up)
{
	unsigned long frame;
	bool fresh = false;
	void *entry;

	xa_for_each(&tracker->pinned, frame, entry) {
		if (!frame_is_pinned(frame))
			xa_erase(&tracker->pinned, frame);
		else if (entry == FRESH && give_up)
			xa_store(&tracker->pinned, frame, WAITED, GFP_KERNEL);
		else if (entry == FRESH)
			fresh = true;
	}
	return fresh;
}

u64 insula_frame_tracker_list_pinned(struct insula_frame_tracker *tracker, u64 *list, u64 count,
				     u64 capacity)
{
	unsigned long frame;
	void *entry;

	xa_for_each(&tracker->pinned, frame, entry) {
		if (!frame_is_pinned(frame)) {
			xa_erase(&tracker->pinned, frame);
			continue;
		}
		if (count < capacity)
			list[count] = PFN_PHYS(frame);
		count++;
	}
	return count;
}

void insula_frame_tracker_destroy(struct insula_frame_tracker *tracker)
{
	struct window *window;
	unsigned long index;

	xa_for_each(&tracker->windows, index, window)
		kfree(window);
	xa_destroy(&tracker->windows);
	xa_destroy(&tracker->pinned);
}
