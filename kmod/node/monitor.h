/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_NODE_MONITOR_H
#define INSULA_NODE_MONITOR_H

#include <linux/fs.h>

#include "insula_module.h"

struct insula_copy_pages;
struct insula_monitor;
struct insula_nested_table;
struct insula_node;

/* A confined node's monitor. All zero: the node is not confined. */
struct insula_node_vmm {
	struct file *memory;		/* its memory object, held through all starts; or NULL */
	struct insula_monitor *header;	/* in it; NULL until it is written for the next start */
	struct insula_nested_table *nested;	/* of this start; NULL: as above */
	struct insula_copy_pages *pages;	/* of this start, if the node is a copy; or NULL */
	struct insula_node_confine start;
};

/* INSULA_NODE_CONFINE, by descriptor `by` of the node, and INSULA_NODE_MONITOR. Lock held. */
int insula_node_confine(struct insula_node *node, struct file *by,
			const struct insula_node_confine *request);
int insula_node_monitor(struct insula_node *node);

/*
 * Copy the APIC ids by which a confined node's kernel knows its cores, in their order; no effect on
 * other nodes.
 */
void insula_node_monitor_guest_ids(const struct insula_node *node, u32 *apic_ids);

/* Whether the node is confined. */
bool insula_node_confined(const struct insula_node *node);

/* Enter the monitor on all of the node's cores. -EINVAL: it is not written for this start. */
int insula_node_start_monitor(struct insula_node *node);

/* Clear its memory, to be written for the next start. No core executes it. -EBUSY, -ENOMEM. */
int insula_node_clear_monitor(struct insula_node *node);

/* Detach it from a node that has been stopped. Node's lock held. Sleeps. */
void insula_node_drop_monitor(struct insula_node *node);

/*
 * Let a confined node access the memory of an object, or take that away from chunk number `first`
 * on. On return nothing uses it, unless with -EIO, which is when the node cannot be stopped. No
 * effect on other nodes. -ENOMEM, -EEXIST, -EPIPE: nothing changed. Node's lock held.
 */
int insula_node_monitor_add_memory(struct insula_node *node, struct file *memory);
int insula_node_monitor_remove_memory(struct insula_node *node, struct file *memory, u32 first);

/*
 * Start the monitor on parked cores that a confined node is given, where it waits for their start
 * by the node's kernel. No effect on other nodes. On failure they are parked. Node's lock held.
 */
int insula_node_monitor_add_cores(struct insula_node *node, const u32 *cpus, u32 count);

/*
 * Park cores of a node, confined or not, of which its kernel may still interrupt none. -EIO: one
 * cannot be stopped, and all stay the node's. Node's lock held.
 */
int insula_node_monitor_park_cores(struct insula_node *node, const u32 *cpus, u32 count);

/* Word at which the monitor tells that it has ended the node; NULL if the node has none. */
const u32 *insula_node_monitor_ended(const struct insula_node *node);

/* Physical address of struct insula_monitor; 0 if the node has none. */
u64 insula_node_monitor_address(const struct insula_node *node);

/* INSULA_MONITOR_DOORBELLS words of the doorbells that a confined node may ring; or NULL. */
u64 *insula_node_monitor_doorbells(const struct insula_node *node);

#endif
