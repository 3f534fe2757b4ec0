// SPDX-License-Identifier: GPL-2.0-only
/*
 * Walk of page tables of a node's programs, of four levels (Intel SDM volume 3, 4.5), through
 * the base's direct map. Each entry is read once; the tables and pages that it refers to must
 * lie in the node's memory.
 */
#include "insula_module.h"

#include <linux/compiler.h>
#include <linux/errno.h>
#include <linux/io.h>
#include <linux/mm.h>

#include <asm/pgtable_types.h>

#include "arch/x86/page_table.h"
#include "insula_lwk.h"
#include "mem/memory.h"

#define LEVELS			4
#define INDEX_BITS		9
#define ADDRESS_MASK		0x000ffffffffff000ULL
#define PRESENT_TO_PROGRAMS	(_PAGE_PRESENT | _PAGE_USER)

/* Number of address bits below those that index a table of this level. */
static unsigned int page_table_shift(unsigned int level)
{
	return PAGE_SHIFT + INDEX_BITS * (level - 1);
}

/* Levels 2 and 3 can map a large page instead of referring to a table. */
static bool page_table_is_leaf(u64 entry, unsigned int level)
{
	return level == 1 || (level < LEVELS && (entry & _PAGE_PSE));
}

static phys_addr_t page_table_leaf_page(u64 entry, unsigned int level, u64 address)
{
	u64 offset_mask = BIT_ULL(page_table_shift(level)) - 1;

	return ((entry & ADDRESS_MASK & ~offset_mask) | (address & offset_mask)) & PAGE_MASK;
}

static u64 page_table_entry(const u64 *table, unsigned int level, u64 address)
{
	return READ_ONCE(table[(address >> page_table_shift(level)) & (BIT(INDEX_BITS) - 1)]);
}

int insula_page_table_walk(struct insula_page_table_walk *walk, struct file *memory,
			   u64 page_table, u64 address)
{
	u64 entry = page_table;

	walk->memory = memory;
	walk->writable = true;
	for (walk->level = LEVELS; ; walk->level--) {
		if (!insula_memory_covers(memory, entry & ADDRESS_MASK, PAGE_SIZE))
			return -EIO;
		walk->table = phys_to_virt(entry & ADDRESS_MASK);
		if (walk->level == 1)
			return 0;
		entry = page_table_entry(walk->table, walk->level, address);
		if ((entry & PRESENT_TO_PROGRAMS) != PRESENT_TO_PROGRAMS)
			return -ENOENT;
		if (page_table_is_leaf(entry, walk->level))
			return 0;
		walk->writable &= !!(entry & _PAGE_RW);
	}
}

int insula_translate(const struct insula_page_table_walk *walk, u64 address,
		     struct insula_translation *translation)
{
	u64 entry = page_table_entry(walk->table, walk->level, address);

	/* It may have been changed since the walk. */
	if ((entry & PRESENT_TO_PROGRAMS) != PRESENT_TO_PROGRAMS ||
	    entry & INSULA_LWK_COPY_ON_WRITE || !page_table_is_leaf(entry, walk->level))
		return -ENOENT;
	translation->writable = walk->writable && entry & _PAGE_RW;
	translation->page = page_table_leaf_page(entry, walk->level, address);
	return insula_memory_covers(walk->memory, translation->page, PAGE_SIZE) ? 0 : -EIO;
}

u64 *insula_page_table(struct file *memory, u64 page_table, u64 address)
{
	struct insula_page_table_walk walk;

	if (insula_page_table_walk(&walk, memory, page_table, address) || walk.level != 1)
		return NULL;
	return walk.table;
}

u64 insula_page_table_entry(phys_addr_t page, pgprot_t protection, bool writable,
			    bool executable)
{
	u64 caching = pgprot_val(protection) & _PAGE_CACHE_MASK;
	u64 entry = page | caching | PRESENT_TO_PROGRAMS | _PAGE_ACCESSED;

	if (writable)
		entry |= _PAGE_RW | _PAGE_DIRTY;
	return executable ? entry : entry | _PAGE_NX;
}
