/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_PROGRAM_PAGES_H
#define INSULA_PROGRAM_PAGES_H

#include <linux/mm_types.h>
#include <linux/xarray.h>

/*
 * Which pages of a program this kernel has mapped, and so who may hold one. Adding is
 * for several at a time, all else for one alone: the caller's lock sees to that.
 */
struct insula_program_pages {
	struct xarray windows;	/* by address, of those that are mapped */
	struct xarray held;	/* by frame number, of those that were and are still held */
};

void insula_program_pages_init(struct insula_program_pages *pages);

/* The page at an address is about to be mapped. -ENOMEM. */
int insula_program_pages_add(struct insula_program_pages *pages, u64 address, struct page *page);

/*
 * Pages of [start, end) are mapped no more: forget those that nobody holds, keep the
 * others as held. -ENOMEM: some are still as if mapped.
 */
int insula_program_pages_unmapped(struct insula_program_pages *pages, u64 start, u64 end);

/* Whether any page is held still; those that are not are forgotten. */
bool insula_program_pages_held(struct insula_program_pages *pages);

/* Forget all. */
void insula_program_pages_destroy(struct insula_program_pages *pages);

#endif
