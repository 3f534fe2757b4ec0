// SPDX-License-Identifier: GPL-2.0-only
/*
 * Walks of a nested page table, and tables that are added to it.
 *
 * What the monitor's memory says is believed only as far as it harms no one but the node: a
 * process of the base may have it mapped. So each table on a walk is checked to be one that was
 * added, or in that memory.
 */
#include "node/nested_tree.h"

#include <linux/compiler.h>
#include <linux/err.h>
#include <linux/gfp.h>
#include <linux/io.h>
#include <linux/mm.h>

void insula_nested_tree_init(struct insula_nested_tree *tree, phys_addr_t root,
			     const struct insula_extent *laid_out)
{
	tree->root = phys_to_virt(root);
	tree->laid_out = *laid_out;
	xa_init(&tree->added);
}

void insula_nested_tree_destroy(struct insula_nested_tree *tree, bool lost)
{
	unsigned long frame;
	struct page *page;

	if (!lost)
		xa_for_each(&tree->added, frame, page)
			__free_page(page);
	xa_destroy(&tree->added);
}

int insula_nested_spares_fill(struct insula_nested_tree *tree, struct insula_nested_spares *spares)
{
	struct page *page;
	int err;

	while (spares->count < INSULA_NESTED_SPARES) {
		page = alloc_page(GFP_KERNEL | __GFP_ZERO);
		if (!page)
			return -ENOMEM;
		err = xa_err(xa_store(&tree->added, page_to_pfn(page), page, GFP_KERNEL));
		if (err) {
			__free_page(page);
			return err;
		}
		spares->page[spares->count++] = page;
	}
	return 0;
}

void insula_nested_spares_free(struct insula_nested_tree *tree, struct insula_nested_spares *spares)
{
	struct page *page;

	while (spares->count) {
		page = spares->page[--spares->count];
		xa_erase(&tree->added, page_to_pfn(page));
		__free_page(page);
	}
}

u64 *insula_nested_table_at(struct insula_nested_tree *tree, u64 entry)
{
	u64 at = entry & INSULA_NESTED_ADDRESS_MASK;

	if ((at < tree->laid_out.start || at - tree->laid_out.start >= tree->laid_out.size) &&
	    !xa_load(&tree->added, PHYS_PFN(at)))
		return NULL;
	return phys_to_virt(at);
}

/* Add a table at an empty entry, if there is a spare one. Returns the entry. */
static u64 nested_tree_add(u64 *entry, struct insula_nested_spares *spares)
{
	u64 new = 0;

	if (spares && spares->count) {
		new = insula_nested_table_entry(page_to_phys(spares->page[--spares->count]));
		WRITE_ONCE(*entry, new);
	}
	return new;
}

u64 *insula_nested_walk(struct insula_nested_tree *tree, u64 address, unsigned int level,
			struct insula_nested_spares *spares)
{
	u64 *table = tree->root, *entry, found;
	unsigned int at;

	for (at = INSULA_NESTED_LEVELS; at > level; at--) {
		entry = &table[insula_nested_index(address, at)];
		found = READ_ONCE(*entry);
		if (!insula_nested_present(found))
			found = nested_tree_add(entry, spares);
		if (!found)
			return ERR_PTR(-ENOENT);
		if (!insula_nested_is_table(found, at))
			return ERR_PTR(-EEXIST);
		table = insula_nested_table_at(tree, found);
		if (!table)
			return ERR_PTR(-EIO);
	}
	return &table[insula_nested_index(address, level)];
}

/* Replace the entry of a large page in a table of level 2 by one of a new table. */
static int nested_tree_split(u64 *entry, struct insula_nested_spares *spares)
{
	u64 large = READ_ONCE(*entry), i, *table;
	struct page *page;

	if (!spares->count)
		return -ENOMEM;
	page = spares->page[--spares->count];
	table = page_address(page);
	for (i = 0; i < INSULA_NESTED_ENTRIES; i++)
		table[i] = (large & ~(u64)_PAGE_PSE) + i * PAGE_SIZE;
	smp_wmb(); /* the table before the entry */
	WRITE_ONCE(*entry, insula_nested_table_entry(page_to_phys(page)));
	return 0;
}

u64 *insula_nested_split(struct insula_nested_tree *tree, u64 address,
			 struct insula_nested_spares *spares)
{
	u64 *entry = insula_nested_walk(tree, address, 1, spares);
	int err;

	if (entry != ERR_PTR(-EEXIST))
		return entry;
	entry = insula_nested_walk(tree, address, 2, spares);
	if (IS_ERR(entry))
		return entry;
	err = nested_tree_split(entry, spares);
	return err ? ERR_PTR(err) : insula_nested_walk(tree, address, 1, spares);
}
