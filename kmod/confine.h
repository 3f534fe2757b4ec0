/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_CONFINE_H
#define INSULA_CONFINE_H

#include <linux/device.h>
#include <linux/fs.h>

struct insula_confinement;

/*
 * Let a device reach the memory of a memory object and no other, each address by
 * itself. NULL if no IOMMU is in use: then nothing holds it back. Else an ERR_PTR:
 * -EXDEV if the IOMMU cannot tell it from a device that is the base's.
 */
struct insula_confinement *insula_confine(struct device *dev, struct file *memory);

/*
 * Let it reach the chunks of an object from number `first` on as well, all or none; or
 * no more. NULL is fine.
 */
int insula_confinement_extend(struct insula_confinement *confinement, struct file *memory,
			      u32 first);
void insula_confinement_reduce(struct insula_confinement *confinement, struct file *memory,
			       u32 first);

/* Leave the device to the base's own arrangement. NULL is fine. */
void insula_unconfine(struct insula_confinement *confinement);

#endif
