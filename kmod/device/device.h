/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_DEVICE_H
#define INSULA_DEVICE_H

#include <linux/fs.h>
#include <linux/list.h>

#include "insula_module.h"
#include "mem/contig_alloc.h"
#include "node/monitor_cores.h"

struct insula_monitor_function;

/* The PCI functions of a confined node, as its monitor's memory describes them. */
struct insula_confined_functions {
	struct insula_extent extent;		/* that memory */
	struct insula_monitor_areas areas;	/* the node's cores */
	const struct insula_monitor_function *function;
	u32 count;
};

int insula_devices_init(void);
void insula_devices_exit(void);

/*
 * Take a PCI function from the base, reset it and append it to `devices`, a list locked by the
 * caller. If there is an IOMMU, restrict its DMA to `memory`. -ENODEV: no such function. -EBUSY:
 * it belongs to a node, or the base cannot release it. -EXDEV: not alone on its bus or in its
 * IOMMU group. -EOPNOTSUPP: it is a bridge, cannot be reset, or cannot interrupt a node. Sleeps.
 */
int insula_device_claim(struct list_head *devices, const struct insula_device *address,
			struct file *memory);

/*
 * Take the returned devices of the list again; on failure return all. `shared`, unless NULL, is
 * mapped for them, too.
 */
int insula_devices_retake(struct list_head *devices, struct file *memory,
			  struct file *shared);

/* Map the chunks of `memory` from number `first` on for all devices or none; unmap. Sleep. */
int insula_devices_extend(struct list_head *devices, struct file *memory, u32 first);
void insula_devices_reduce(struct list_head *devices, struct file *memory, u32 first);

/*
 * Enable DMA of a confined node's devices, and send their interrupts on to it. -EINVAL: one of
 * them is not relayed, or not described.
 */
int insula_devices_connect(struct list_head *devices, const struct insula_confined_functions *by);

/* Disable DMA, until the node enables it again, and send no more interrupts on. Any context. */
void insula_devices_disable_dma(struct list_head *devices);

/* The same for the devices of all nodes, when the base crashes. Any context. */
void insula_devices_disable_dma_all(void);

/* Reset them; the node's cores have been stopped. They stay the node's. Sleeps. */
void insula_devices_reset(struct list_head *devices);

/* Reset them and return them to the base. They stay on the list, for reports. Sleeps. */
void insula_devices_return(struct list_head *devices);

/* Free the list. Devices that were not returned are leaked. */
void insula_devices_free(struct list_head *devices);

/* Copy at most `room` entries of the list. Returns the number of all. */
u32 insula_devices_list(const struct list_head *devices, struct insula_device *list, u32 room);

#endif
