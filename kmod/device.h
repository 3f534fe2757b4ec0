/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_DEVICE_H
#define INSULA_DEVICE_H

#include <linux/fs.h>
#include <linux/list.h>

#include "insula_module.h"

int insula_devices_init(void);
void insula_devices_exit(void);

/*
 * Take a PCI function from the base, reset it and append it to `devices`, a list that
 * is the caller's to lock. If there is an IOMMU it can reach `memory` only.
 * -ENODEV: there is none. -EBUSY: a node's already, or the base does not let go.
 * -EXDEV: not alone on its bus or to the IOMMU. -EOPNOTSUPP: it is a bridge, cannot be
 * reset, or cannot interrupt a node. Sleeps.
 */
int insula_device_claim(struct list_head *devices, const struct insula_device *address,
			struct file *memory);

/*
 * Take those again that have been given back; all, or the others are given back too. They
 * can reach `shared` as well, which may be NULL.
 */
int insula_devices_take_again(struct list_head *devices, struct file *memory,
			      struct file *shared);

/*
 * Let all of them reach the chunks of `memory` from number `first` on as well, or none of
 * them; or no more. Sleeps.
 */
int insula_devices_extend(struct list_head *devices, struct file *memory, u32 first);
void insula_devices_reduce(struct list_head *devices, struct file *memory, u32 first);

/* No DMA from now on, as far as the node leaves it so. Any context. */
void insula_devices_silence(struct list_head *devices);

/* The same for the devices of all nodes, when the base crashes. Any context. */
void insula_devices_silence_all(void);

/* Reset them; the node must not execute any more. They stay the node's. Sleeps. */
void insula_devices_reset(struct list_head *devices);

/* Reset them and give them back. They stay on the list, to be told of. Sleeps. */
void insula_devices_return(struct list_head *devices);

/* Forget what was on the list. What has not been given back is held for good. */
void insula_devices_forget(struct list_head *devices);

/* Which are on the list, as many as there is room for: how many there are. */
u32 insula_devices_list(const struct list_head *devices, struct insula_device *list, u32 room);

#endif
