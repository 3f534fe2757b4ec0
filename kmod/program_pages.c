// SPDX-License-Identifier: GPL-2.0-only
/*
 * A page of a program may be reused by its kernel only when nobody here can reach it. A
 * mapping is gone when it is removed; I/O under way holds a reference for as long as
 * it takes, which cannot be seen from the mapping any more. So what was mapped is written
 * down, and looked at when it is to be let go.
 *
 * All pages of a node have one reference from the start (see take.c). Further ones are of
 * mappings, which are counted apart, or of somebody who holds the page.
 */
#include "insula_module.h"

#include <linux/align.h>
#include <linux/bits.h>
#include <linux/errno.h>
#include <linux/minmax.h>
#include <linux/mm.h>
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
	xa_init(&pages->held);
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

int insula_program_pages_add(struct insula_program_pages *pages, u64 address, struct page *page)
{
	struct window *window = window_at(pages, address);

	if (!window)
		return -ENOMEM;
	WRITE_ONCE(window->frame[address % WINDOW_SIZE / PAGE_SIZE], page_to_pfn(page) + 1);
	return 0;
}

static bool is_held(unsigned long frame)
{
	struct page *page = pfn_to_page(frame);

	return page_ref_count(page) - 1 > atomic_read(&page->_mapcount) + 1;
}

/* Those of a window that begin at `from` and end before `to`. */
static int unmapped_in(struct insula_program_pages *pages, struct window *window, u64 from, u64 to)
{
	unsigned long i, frame;
	int err;

	for (i = from / PAGE_SIZE; i < to / PAGE_SIZE; i++) {
		if (!window->frame[i])
			continue;
		frame = window->frame[i] - 1;
		if (is_held(frame)) {
			err = xa_err(xa_store(&pages->held, frame, xa_mk_value(0), GFP_KERNEL));
			if (err)
				return err;
		}
		window->frame[i] = 0;
	}
	return 0;
}

int insula_program_pages_unmapped(struct insula_program_pages *pages, u64 start, u64 end)
{
	struct window *window;
	unsigned long index;
	u64 base, from, to;
	int err;

	xa_for_each_range(&pages->windows, index, window, start / WINDOW_SIZE,
			  (end - 1) / WINDOW_SIZE) {
		base = index * WINDOW_SIZE;
		from = max(start, base) - base;
		to = min(end, base + WINDOW_SIZE) - base;
		err = unmapped_in(pages, window, from, to);
		if (err)
			return err;
		if (to - from == WINDOW_SIZE) {
			xa_erase(&pages->windows, index);
			kfree(window);
		}
	}
	return 0;
}

bool insula_program_pages_held(struct insula_program_pages *pages)
{
	unsigned long frame;
	bool held = false;
	void *entry;

	xa_for_each(&pages->held, frame, entry) {
		if (is_held(frame))
			held = true;
		else
			xa_erase(&pages->held, frame);
	}
	return held;
}

void insula_program_pages_destroy(struct insula_program_pages *pages)
{
	struct window *window;
	unsigned long index;

	xa_for_each(&pages->windows, index, window)
		kfree(window);
	xa_destroy(&pages->windows);
	xa_destroy(&pages->held);
}
