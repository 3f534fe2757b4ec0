/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_NESTED_TABLE_H
#define INSULA_NESTED_TABLE_H

#include <linux/fs.h>

#include "insula_module.h"
#include "mem/contig_alloc.h"
#include "node/monitor_cores.h"

struct insula_node;

/*
 * The nested page table of a confined node during one run of it. It maps addresses one to one:
 * memory of the node, in pieces of INSULA_GRANULE, and single frames of the base. It may outlive
 * the node; changes are without effect then.
 */
struct insula_nested_table;

/* What user space laid out, checked to be in the monitor's memory. */
struct insula_nested_place {
	struct file *monitor;		/* that memory, held by the table */
	struct insula_extent extent;	/* its only chunk */
	phys_addr_t root;
	u64 *changes;			/* nested_changes of its header */
	struct insula_monitor_areas areas;
};

/*
 * Take over the table of a node that is about to start. -EINVAL: there is no area for one of its
 * cores. -ENOMEM.
 */
struct insula_nested_table *insula_nested_table_create(const struct insula_nested_place *place,
						       struct insula_node *node);

/* The node's cores. */
struct insula_monitor_cores *insula_nested_table_cores(struct insula_nested_table *table);

/* NULL is allowed. */
void insula_nested_table_get(struct insula_nested_table *table);
void insula_nested_table_put(struct insula_nested_table *table);

/* The node is being ended: its cores are about to be reset. NULL is allowed. */
void insula_nested_table_disconnect(struct insula_nested_table *table);

/*
 * The node's cores are parked; with `lost` one may still execute. Before this its cores must not be
 * reused. NULL is allowed.
 */
void insula_nested_table_end(struct insula_nested_table *table, bool lost);

/*
 * Map memory that becomes the node's, writable. -EEXIST: some of it is mapped already. -ENOMEM,
 * -EPIPE: ended. On failure nothing is mapped. Sleeps.
 */
int insula_nested_memory_map(struct insula_nested_table *table, const struct insula_extent *memory);

/* Unmap such memory. The node may use it until insula_nested_table_flush(). */
void insula_nested_memory_unmap(struct insula_nested_table *table,
				const struct insula_extent *memory);

/*
 * Have a page of the node's memory, which is mapped read-only, be another frame, which the node may
 * write. On return no core uses the former one. -ENOENT: nothing is mapped there. -ENOMEM, -EPIPE:
 * ended. -EIO: as of insula_nested_table_flush(). Sleeps.
 */
int insula_nested_page_replace(struct insula_nested_table *table, u64 address, phys_addr_t frame);

/* Allocate what mapping a frame of the base needs, for good. -ENOMEM, -EPIPE: ended. Sleeps. */
int insula_nested_frame_prepare(struct insula_nested_table *table, unsigned long frame);

/*
 * Map a prepared frame for one more user. The node may write it while any of its users is a
 * writer. -EEXIST: it is no frame of the base. -ENOSPC: it has too many users. -EAGAIN: it was not
 * prepared. -EPIPE: ended.
 */
int insula_nested_frame_map(struct insula_nested_table *table, unsigned long frame, bool writer);

/* A user writes a frame that it has mapped from now on. */
void insula_nested_frame_add_writer(struct insula_nested_table *table, unsigned long frame);

/*
 * Unmap a frame for one of its users. The node may use it until insula_nested_table_flush(), and
 * after that as its other users may. Waits for no memory: for memory reclaim.
 */
void insula_nested_frame_unmap(struct insula_nested_table *table, unsigned long frame, bool writer);

/*
 * Wait until no core uses what was unmapped before. A core answers within microseconds, whatever
 * its kernel does; a node whose monitor does not is stopped. -EIO: a core may use it forever.
 * Sleeps, but waits for no memory: for memory reclaim.
 */
int insula_nested_table_flush(struct insula_nested_table *table);

#endif
