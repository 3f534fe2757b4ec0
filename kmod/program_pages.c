// SPDX-License-Identifier: GPL-2.0-only
/*
 * A page of a program may be reused by its kernel only when nobody here can reach it. A
 * mapping is gone when it is removed; I/O under way pins a page for as long as it takes,
 * which cannot be seen from the mapping any more. So what was mapped is written down, and
 * looked at when it is unmapped: a frame that is pinned then is remembered by its number
 * until it is not. New references come from mappings only, so one that is not pinned when
 * its mapping goes will not be.
 *
 * All pages of a node have one reference from the start (see take.c). Further ones are of
 * mappings, which are counted apart, or of somebody who pins the page.
 */
#include "insula_module.h"

#include <linux/align.h>
#include <linux/bits.h>
#include <linux/errno.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/pfn.h>
#include <linux/slab.h>

#include "insula_lwk.h"
#include "program_pages.h"

#define WINDOW_SIZE	BIT_ULL(INSULA_LWK_REACH_SHIFT)
#define WINDOW_PAGES	(WINDOW_SIZE / PAGE_SIZE)

/* Frame number + 1 of each page that is mapped, in one window of addresses. */
struct window {
	unsigned long frame[WINDOW_PAGES];
};

void insula_program_pages_init(struct insula_program_pages *pages)
{
	xa_init(&pages->windows);
	xa_init(&pages->pinned);
}

static struct window *window_at(struct insula_program_pages *pages, u64 address)
{
	unsigned long index = address / WINDOW_SIZE;
	struct window *window = xa_load(&pages->windows, index), *other;

	if (window)
		return window;
	window = kzalloc(sizeof(*window), GFP_KERNEL);
	if (!window)
		return NULL;
	/* Another thread may be faster. */
	other = xa_cmpxchg(&pages->windows, index, NULL, window, GFP_KERNEL);
	if (!other)
		return window;
	kfree(window);
	return xa_is_err(other) ? NULL : other;
}

/*
 * The counts are not read at one moment: only while the mappings do not change do they tell
 * anything. What is seen too much is only looked at again later.
 */
static bool is_pinned(unsigned long frame)
{
	struct page *page = pfn_to_page(frame);
	int mapped, references;

	do {
		mapped = atomic_read(&page->_mapcount);
		smp_rmb(); /* a mapping is counted after its reference */
		references = page_ref_count(page);
		smp_rmb(); /* and not counted any more before that goes */
	} while (mapped != atomic_read(&page->_mapcount));
	return references - 1 > mapped + 1;
}

/* Whether a frame has to be waited for before it is said to be pinned for long. */
#define FRESH	xa_mk_value(0)
#define WAITED	xa_mk_value(1)

/* A frame is not mapped any more where it was. */
static int leave(struct insula_program_pages *pages, unsigned long frame, gfp_t gfp)
{
	if (!is_pinned(frame) || xa_load(&pages->pinned, frame))
		return 0;
	return xa_err(xa_store(&pages->pinned, frame, FRESH, gfp));
}

int insula_program_pages_add(struct insula_program_pages *pages, u64 address, struct page *page)
{
	struct window *window = window_at(pages, address);
	unsigned long *place, old;
	int err = 0;

	if (!window)
		return -ENOMEM;
	place = &window->frame[address % WINDOW_SIZE / PAGE_SIZE];
	old = READ_ONCE(*place);
	/* The program's kernel has put another frame there without a word. */
	if (old && old != page_to_pfn(page) + 1)
		err = leave(pages, old - 1, GFP_KERNEL);
	if (!err)
		WRITE_ONCE(*place, page_to_pfn(page) + 1);
	return err;
}

/* Those of a window that begin at `from` and end before `to`. */
static void unmapped_in(struct insula_program_pages *pages, struct window *window, u64 from,
			u64 to)
{
	unsigned long i;

	for (i = from / PAGE_SIZE; i < to / PAGE_SIZE; i++) {
		if (!window->frame[i])
			continue;
		/* One that was forgotten would be reused under I/O. */
		leave(pages, window->frame[i] - 1, GFP_KERNEL | __GFP_NOFAIL);
		window->frame[i] = 0;
	}
}

void insula_program_pages_unmapped(struct insula_program_pages *pages, u64 start, u64 end)
{
	struct window *window;
	unsigned long index;
	u64 base, from, to;

	xa_for_each_range(&pages->windows, index, window, start / WINDOW_SIZE,
			  (end - 1) / WINDOW_SIZE) {
		base = index * WINDOW_SIZE;
		from = max(start, base) - base;
		to = min(end, base + WINDOW_SIZE) - base;
		unmapped_in(pages, window, from, to);
		if (to - from == WINDOW_SIZE) {
			xa_erase(&pages->windows, index);
			kfree(window);
		}
	}
}

bool insula_program_pages_await(struct insula_program_pages *pages, bool give_up)
{
	unsigned long frame;
	bool fresh = false;
	void *entry;

	xa_for_each(&pages->pinned, frame, entry) {
		if (!is_pinned(frame))
			xa_erase(&pages->pinned, frame);
		else if (entry == FRESH && give_up)
			xa_store(&pages->pinned, frame, WAITED, GFP_KERNEL);
		else if (entry == FRESH)
			fresh = true;
	}
	return fresh;
}

u64 insula_program_pages_pinned(struct insula_program_pages *pages, u64 *list, u64 count,
				u64 capacity)
{
	unsigned long frame;
	void *entry;

	xa_for_each(&pages->pinned, frame, entry) {
		if (!is_pinned(frame)) {
			xa_erase(&pages->pinned, frame);
			continue;
		}
		if (count < capacity)
			list[count] = PFN_PHYS(frame);
		count++;
	}
	return count;
}

void insula_program_pages_destroy(struct insula_program_pages *pages)
{
	struct window *window;
	unsigned long index;

	xa_for_each(&pages->windows, index, window)
		kfree(window);
	xa_destroy(&pages->windows);
	xa_destroy(&pages->pinned);
}
