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

/* The table whose entry maps an address, and as long as it is, those of all its entries. */
struct insula_page_table_walk {
	struct file *memory;
	u64 *table;		/* of PAGE_SIZE / 8 entries */
	unsigned int level;	/* 1: of pages; else of large ones */
	bool writable;		/* as far as the tables above say */
};

/*
 * Find the table for an address in the page tables of a program of a node, whose memory is
 * `memory`. The node may change them at any time: they are not trusted. -ENOENT: nothing is mapped
 * there for user mode. -EIO: the tables are malformed.
 */
int insula_page_table_walk(struct insula_page_table_walk *walk, struct file *memory,
			   u64 page_table, u64 address);

/*
 * Look up an address that the table found is for. -ENOENT: not mapped for user mode, or copied on
 * write. -EIO: what is mapped is not the node's memory.
 */
int insula_translate(const struct insula_page_table_walk *walk, u64 address,
		     struct insula_translation *translation);

/* The table of pages for an address. NULL: there is none, or it is mapped by a large page. */
u64 *insula_page_table(struct file *memory, u64 page_table, u64 address);

/* Entry for a page that programs may access, cached as `protection` says. */
u64 insula_page_table_entry(phys_addr_t page, pgprot_t protection, bool writable,
			    bool executable);

#endif
