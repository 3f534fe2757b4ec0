/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_IOMMU_DOMAIN_H
#define INSULA_IOMMU_DOMAIN_H

#include <linux/device.h>
#include <linux/fs.h>

struct insula_iommu_domain;

/* Whether an IOMMU lets a device send no interrupts but those that this kernel set up for it. */
bool insula_iommu_remaps_interrupts(struct device *dev);

/*
 * Restrict a device's DMA to a memory object, mapped one to one. NULL if no IOMMU is in use:
 * then DMA is unrestricted. ERR_PTR(-EXDEV): the IOMMU group has a device of the base.
 */
struct insula_iommu_domain *insula_iommu_domain_create(struct device *dev, struct file *memory);

/* Map the chunks of an object from number `first` on, all or none; unmap them. NULL is allowed. */
int insula_iommu_domain_extend(struct insula_iommu_domain *iommu_domain, struct file *memory,
			       u32 first);
void insula_iommu_domain_reduce(struct insula_iommu_domain *iommu_domain, struct file *memory,
				u32 first);

/* Restore the base's domain. NULL is allowed. */
void insula_iommu_domain_destroy(struct insula_iommu_domain *iommu_domain);

#endif
