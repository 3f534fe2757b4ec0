/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_HELD_H
#define INSULA_HELD_H

#include "insula_module.h"
#include "take.h"

struct page;

/* Whether no one but us refers to a page of it. */
bool insula_unheld(const struct insula_extent *extent);

/*
 * Wait, until `deadline` in jiffies, for pages that no process maps any more to be let go
 * of by whoever does I/O on them. False: some still are held. Sleeps.
 */
bool insula_await_unheld(const struct insula_extent *extent, unsigned long deadline);

/* The longest part of it from its start on of granules that are all held, or all not. */
struct insula_extent insula_held_alike(const struct insula_extent *extent);

/* Keep a page of ours that somebody holds until nobody does, then give it to the base. */
void insula_withhold(struct page *page);

/* What is withheld, in bytes. */
u64 insula_withheld(void);

/* What still is goes to the base when its holders let go. */
void insula_withheld_exit(void);

#endif
