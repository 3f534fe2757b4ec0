/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_PROGRAM_PAGES_H
#define INSULA_PROGRAM_PAGES_H

#include <linux/mm_types.h>
#include <linux/xarray.h>

/*
 * Which frames of a program this kernel has mapped, and so which of them something may pin
 * (a reference that I/O under way or a pipe has). A frame is tracked by the address at which
 * it is mapped, and from the moment it is unmapped on by its own number: the program may
 * have moved it, and it may be mapped elsewhere by then. Adding is for several at a time,
 * all else for one alone: the caller's lock sees to that.
 */
struct insula_program_pages {
	struct xarray windows;	/* by address, of those that are mapped */
	struct xarray pinned;	/* by frame number, of those that were unmapped while pinned */
};

void insula_program_pages_init(struct insula_program_pages *pages);

/* The page at an address is about to be mapped. -ENOMEM. */
int insula_program_pages_add(struct insula_program_pages *pages, u64 address, struct page *page);

/* Pages of [start, end) are mapped no more: forget those that nothing pins, keep the others. */
void insula_program_pages_unmapped(struct insula_program_pages *pages, u64 start, u64 end);

/*
 * Whether a frame is pinned for which nobody has waited in vain yet. `give_up`: from now on
 * that has been done for all of them.
 */
bool insula_program_pages_await(struct insula_program_pages *pages, bool give_up);

/*
 * Add the physical addresses of all frames that are pinned still to a list that has `count`
 * of at most `capacity`; the others are forgotten. The number of all of them together.
 */
u64 insula_program_pages_pinned(struct insula_program_pages *pages, u64 *list, u64 count,
				u64 capacity);

/* Forget all. */
void insula_program_pages_destroy(struct insula_program_pages *pages);

#endif
