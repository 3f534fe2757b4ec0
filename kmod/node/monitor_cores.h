/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_MONITOR_CORES_H
#define INSULA_MONITOR_CORES_H

#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/types.h>

struct file;
struct insula_monitor_core;
struct insula_node;

/* A core of a confined node, and what its monitor shares with the module. */
struct insula_confined_core {
	struct insula_monitor_core *area;
	u32 index;			/* of the area */
	u32 apic_id;
	bool waits;			/* the flush under way waits for it */
	u64 flushes;			/* its count before that */
};

/* Areas that user space laid out, checked to be in the monitor's memory. */
struct insula_monitor_areas {
	phys_addr_t start;
	u32 count;
	struct file *memory;		/* the monitor's */
};

/* The cores of a confined node during one run of it. */
struct insula_monitor_cores {
	struct list_head link;
	struct mutex flushing;		/* one flush at a time, its wait included */
	struct mutex lock;		/* all below; inside `flushing` */
	struct insula_node *node;	/* NULL once it is ending */
	bool ended;			/* they are parked */
	bool lost;			/* one could not be: it may execute forever */
	struct insula_monitor_areas areas;
	u32 count;
	struct insula_confined_core *core;	/* changed with `flushing` locked, too */
	u32 *apic_ids;			/* theirs */
};

/* Find the areas of a node's cores, in the order of its cores. -EINVAL: one has none. -ENOMEM. */
int insula_monitor_cores_init(struct insula_monitor_cores *cores, struct insula_node *node,
			      const struct insula_monitor_areas *areas);
void insula_monitor_cores_destroy(struct insula_monitor_cores *cores);

/*
 * Find a core of any confined node by its APIC id, and take a reference to the memory of its
 * monitor. -ENODEV: there is none whose node runs, and runs there.
 */
int insula_monitor_cores_find(u32 apic_id, struct insula_confined_core *core,
			      struct file **memory);

/* Add cores, parked, with cleared areas. -EINVAL, -ENOMEM: none is added. Node's lock held. */
int insula_monitor_cores_add(struct insula_monitor_cores *cores, const u32 *cpus, u32 count);

/* The node has these no more, or again: its other cores interrupt them no more. As a flush. */
int insula_monitor_cores_own(struct insula_monitor_cores *cores, const u32 *cpus, u32 count,
			     bool owned);

/* Remove cores that are parked. Node's lock held. */
void insula_monitor_cores_remove(struct insula_monitor_cores *cores, const u32 *cpus, u32 count);

/*
 * Ask the monitor on a core for INSULA_MONITOR_REQUEST_*, or take requests back that it may not
 * have seen yet. Any context.
 */
void insula_monitor_core_request(const struct insula_confined_core *core, u64 requests);
void insula_monitor_core_withdraw(const struct insula_confined_core *core, u64 requests);

/* Send the node's kernel an NMI. Any context. */
void insula_monitor_core_nmi(const struct insula_confined_core *core);

/* See insula_nested_table_flush(). */
int insula_monitor_cores_flush(struct insula_monitor_cores *cores);

/* The node is being ended: its cores are not interrupted any more, until they are parked. */
void insula_monitor_cores_disconnect(struct insula_monitor_cores *cores);

/* They are parked; with `lost` one may still execute. */
void insula_monitor_cores_end(struct insula_monitor_cores *cores, bool lost);

bool insula_monitor_cores_lost(const struct insula_monitor_cores *cores);

#endif
