/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_NESTED_TREE_H
#define INSULA_NESTED_TREE_H

#include <linux/mm_types.h>
#include <linux/xarray.h>

#include "arch/x86/nested_paging.h"
#include "mem/contig_alloc.h"

/* Tables that the walk to a table of level 1 can lack. */
#define INSULA_NESTED_SPARES	(INSULA_NESTED_LEVELS - 1)

/*
 * The tables of a nested page table: user space lays some out in the monitor's memory, others are
 * added in memory of the base, and stay. The caller locks walks.
 */
struct insula_nested_tree {
	u64 *root;
	struct insula_extent laid_out;	/* the monitor's memory */
	struct xarray added;		/* pages of tables, by frame number; has its own lock */
};

/* Pages for tables that a walk may need, allocated before anything is locked. All zero: none. */
struct insula_nested_spares {
	struct page *page[INSULA_NESTED_SPARES];
	unsigned int count;
};

void insula_nested_tree_init(struct insula_nested_tree *tree, phys_addr_t root,
			     const struct insula_extent *laid_out);

/* Free the tables that were added; if a core may use them forever (`lost`), leak them. */
void insula_nested_tree_destroy(struct insula_nested_tree *tree, bool lost);

/* Have enough spares for one walk. -ENOMEM. Spares that no walk used are freed. Both sleep. */
int insula_nested_spares_fill(struct insula_nested_tree *tree, struct insula_nested_spares *spares);
void insula_nested_spares_free(struct insula_nested_tree *tree,
			       struct insula_nested_spares *spares);

/* The table that an entry refers to, or NULL if it is none. */
u64 *insula_nested_table_at(struct insula_nested_tree *tree, u64 entry);

/*
 * The entry for an address in the table of `level` on its walk; tables are added from `spares`, if
 * any. ERR_PTR(-ENOENT): one is missing. -EEXIST: a large page maps the address. -EIO: malformed.
 */
u64 *insula_nested_walk(struct insula_nested_tree *tree, u64 address, unsigned int level,
			struct insula_nested_spares *spares);

/*
 * The entry for an address in the table of level 1, like insula_nested_walk(), but a large page
 * that maps it is replaced by a table with the same translations, from `spares`.
 */
u64 *insula_nested_split(struct insula_nested_tree *tree, u64 address,
			 struct insula_nested_spares *spares);

#endif
