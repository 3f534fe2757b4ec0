// SPDX-License-Identifier: GPL-2.0-only
/*
 * Page tables of a node's programs, of four levels (Intel SDM volume 3, 4.5), read
 * through the base's own mapping of all memory. Each entry is read once; what it
 * leads to, tables as well as pages, must lie in the node's memory.
 */
#include "insula_module.h"

#include <linux/compiler.h>
#include <linux/errno.h>
#include <linux/io.h>
#include <linux/mm.h>

#include <asm/pgtable_types.h>

#include "arch/x86/page_table.h"
#include "memory.h"

#define LEVELS			4
#define INDEX_BITS		9
#define ADDRESS_MASK		0x000ffffffffff000ULL
#define PRESENT_TO_PROGRAMS	(_PAGE_PRESENT | _PAGE_USER)

/* Bits of an address below those that index a table of this level. */
static unsigned int shift_of(unsigned int level)
{
	return PAGE_SHIFT + INDEX_BITS * (level - 1);
}

/* Levels 2 and 3 can map a large page instead of leading to a table. */
static bool is_page(u64 entry, unsigned int level)
{
	return level == 1 || (level < LEVELS && (entry & _PAGE_PSE));
}

static phys_addr_t page_at(u64 entry, unsigned int level, u64 address)
{
	u64 inside = BIT_ULL(shift_of(level)) - 1;

	return ((entry & ADDRESS_MASK & ~inside) | (address & inside)) & PAGE_MASK;
}

int insula_translate(struct file *memory, u64 page_table, u64 address,
		     struct insula_translation *translation)
{
	u64 table = page_table & ADDRESS_MASK, entry;
	unsigned int level;

	translation->writable = true;
	for (level = LEVELS; ; level--) {
		if (!insula_memory_covers(memory, table, PAGE_SIZE))
			return -EIO;
		entry = READ_ONCE(((u64 *)phys_to_virt(table))[(address >> shift_of(level)) &
							       (BIT(INDEX_BITS) - 1)]);
		if ((entry & PRESENT_TO_PROGRAMS) != PRESENT_TO_PROGRAMS)
			return -ENOENT;
		translation->writable &= !!(entry & _PAGE_RW);
		if (is_page(entry, level))
			break;
		table = entry & ADDRESS_MASK;
	}
	translation->page = page_at(entry, level, address);
	return insula_memory_covers(memory, translation->page, PAGE_SIZE) ? 0 : -EIO;
}
