/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_PAGE_TABLE_H
#define INSULA_PAGE_TABLE_H

#include <linux/fs.h>
#include <linux/pgtable.h>
#include <linux/types.h>

/* Translation of an address by a program's page table. */
struct insula_translation {
	phys_addr_t page;	/* of the page, of PAGE_SIZE */
	bool writable;
};

/*
 * Look up an address in the page table of a program of a node, whose memory is `memory`. The
 * node may change the table at any time: it is not trusted. -ENOENT: not mapped for user mode,
 * or copied on write. -EIO: the table is malformed, or maps memory that is not the node's.
 */
int insula_translate(struct file *memory, u64 page_table, u64 address,
		     struct insula_translation *translation);

/*
 * The lowest table on the walk to an address, of PAGE_SIZE / 8 entries. NULL: there is none, or
 * the tables are malformed, or the address is mapped by a large page.
 */
u64 *insula_page_table(struct file *memory, u64 page_table, u64 address);

/* Entry for a page that programs may access, cached as `protection` says. */
u64 insula_page_table_entry(phys_addr_t page, pgprot_t protection, bool writable,
			    bool executable);

#endif
