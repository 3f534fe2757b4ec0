/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Entries of nested page tables. AMD's have the format of a kernel's page tables, where each access
 * counts as a program's (AMD APM volume 2, 15.25.5). Intel's have bits for reading, writing and
 * executing in the places of those for presence, writing and programs, and those of pages a memory
 * type (Intel SDM volume 3, 29.3.2).
 */
#ifndef INSULA_NESTED_PAGING_H
#define INSULA_NESTED_PAGING_H

#include <linux/bits.h>
#include <linux/mm.h>
#include <linux/types.h>

#include <asm/cpufeature.h>
#include <asm/pgtable_types.h>
#include <asm/vmx.h>

#define INSULA_NESTED_LEVELS		4
#define INSULA_NESTED_ENTRIES		(PAGE_SIZE / sizeof(u64))
#define INSULA_NESTED_ADDRESS_MASK	0x000ffffffffff000ULL

/* Index of the entry for an address in a table of `level`; those of level 1 map single pages. */
static inline unsigned int insula_nested_index(u64 address, unsigned int level)
{
	return address >> (PAGE_SHIFT + 9 * (level - 1)) & (INSULA_NESTED_ENTRIES - 1);
}

static inline bool insula_nested_present(u64 entry)
{
	return entry & _PAGE_PRESENT;
}

/* Whether an entry of a table of `level` refers to another table. */
static inline bool insula_nested_is_table(u64 entry, unsigned int level)
{
	return level > 1 && insula_nested_present(entry) && !(entry & _PAGE_PSE);
}

static inline u64 insula_nested_table_entry(phys_addr_t table)
{
	return table | _PAGE_PRESENT | _PAGE_RW | _PAGE_USER;
}

/* Entry of a single page, or in a table of level 2 of a large one. */
static inline u64 insula_nested_page_entry(phys_addr_t page, unsigned int level, bool writable)
{
	u64 type = boot_cpu_has(X86_FEATURE_VMX) ? VMX_EPTP_MT_WB << VMX_EPT_MT_EPTE_SHIFT : 0;

	return page | type | _PAGE_PRESENT | _PAGE_USER | (writable ? _PAGE_RW : 0) |
	       (level > 1 ? _PAGE_PSE : 0);
}

#endif
