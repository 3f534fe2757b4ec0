/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_PAGE_TABLE_H
#define INSULA_PAGE_TABLE_H

#include <linux/fs.h>
#include <linux/types.h>

/* What a program's page table says of an address. */
struct insula_translation {
	phys_addr_t page;	/* that the address lies in, of PAGE_SIZE */
	bool writable;
};

/*
 * Look an address up in the page table of a program of a node, whose memory is
 * `memory`. The table is the node's to change at any moment: nothing in it is
 * believed. -ENOENT: not mapped for programs. -EIO: the table makes no sense, or maps
 * what is not the node's.
 */
int insula_translate(struct file *memory, u64 page_table, u64 address,
		     struct insula_translation *translation);

#endif
