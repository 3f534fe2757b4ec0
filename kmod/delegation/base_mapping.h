/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_BASE_MAPPING_H
#define INSULA_BASE_MAPPING_H

#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/types.h>

#include "delegation/base_frames.h"

struct insula_mirror;

/* Pages of the base that the page table of a mirror's program maps. */
struct insula_base_mappings {
	struct mmu_interval_notifier notifier;	/* on the proxy; notifier.mm is NULL: none */
	bool follows;			/* the notifier stays until the mirror's end */
	struct mutex lock;		/* all below; taken in memory reclaim */
	bool ended;			/* the node's memory is not to be written any more */
	u64 page_table;			/* in which the entries are */
	struct insula_base_frames frames;	/* that have entries */
};

/* `nested`: of a confined node, stays as long as the mirror's slots; else NULL. */
void insula_base_mappings_init(struct insula_base_mappings *base,
			       struct insula_nested_table *nested);

/* Follow the page tables of the calling process, the mirror's proxy. */
int insula_base_mappings_follow(struct insula_mirror *mirror);

/* The node has ended. */
void insula_base_mappings_end(struct insula_base_mappings *base);

/* The proxy has exited, or there was none. */
void insula_base_mappings_destroy(struct insula_base_mappings *base);

/* INSULA_MIRROR_FAULT_IN with its argument in user space. */
int insula_mirror_fault_in(struct insula_mirror *mirror, void __user *argument);

#endif
