/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_QUARANTINE_H
#define INSULA_QUARANTINE_H

#include "insula_module.h"
#include "mem/contig_alloc.h"

struct page;

/* Whether no page of it is pinned. */
bool insula_unpinned(const struct insula_extent *extent);

/*
 * Wait until no page of it is pinned, until `deadline` in jiffies. Its pages are not mapped by
 * any process. False: some are still pinned. Sleeps.
 */
bool insula_wait_unpinned(const struct insula_extent *extent, unsigned long deadline);

/* Its longest prefix of granules that all have pinned pages, or all have none. */
struct insula_extent insula_pinned_run(const struct insula_extent *extent);

/* Keep a pinned page until it is unpinned, then clear it and return it to the base. */
void insula_quarantine_add(struct page *page);

/* Size of all quarantined pages, in bytes. */
u64 insula_quarantine_size(void);

/* Return all pages: the base reuses those still pinned once they are unpinned. */
void insula_quarantine_exit(void);

#endif
