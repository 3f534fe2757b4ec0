/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_COPY_PAGES_H
#define INSULA_COPY_PAGES_H

#include <linux/fs.h>
#include <linux/types.h>

struct insula_nested_table;

/*
 * Pages of a copy of a confined node, which are its own once they are written: answers the
 * requests of its cores, during one run of it.
 */
struct insula_copy_pages;

/*
 * `place` is where the monitor finds the doorbell. -EBUSY: the memory object is used by another
 * run. ERR_PTR. Sleeps.
 */
struct insula_copy_pages *insula_copy_pages_create(struct file *memory,
						   struct insula_nested_table *nested, u64 *place);

/* Its cores execute no more, or never did. NULL is allowed. Sleeps. */
void insula_copy_pages_destroy(struct insula_copy_pages *pages);

int insula_copy_pages_init(void);
void insula_copy_pages_exit(void);

#endif
