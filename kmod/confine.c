// SPDX-License-Identifier: GPL-2.0-only
/*
 * Keeping a device's DMA inside a node's memory, where the machine has an IOMMU.
 *
 * A node's kernel knows of no IOMMU: what it tells a device are physical addresses.
 * So the device gets a domain that maps the node's memory one to one. Messages that
 * are interrupts need no mapping: on x86 the IOMMU tells them by their address before
 * it translates anything.
 */
#include "insula_module.h"

#include <linux/pci.h>
#include <linux/slab.h>

#include "compat/iommu.h"
#include "confine.h"
#include "memory.h"

struct insula_confinement {
	struct iommu_group *group;
	struct iommu_domain *domain;
};

/* A bridge does no DMA for itself. */
static int is_other(struct device *dev, void *data)
{
	if (dev == data)
		return 0;
	return dev_is_pci(dev) && pci_is_bridge(to_pci_dev(dev)) ? 0 : -EXDEV;
}

/* The chunks from number `first` up to `end`. */
static void unmap_memory(struct iommu_domain *domain, struct file *memory, u32 first, u32 end)
{
	struct insula_extent extent;

	while (first < end && insula_memory_chunk(memory, first++, &extent))
		iommu_unmap(domain, extent.start, extent.size);
}

/* All chunks from number `first` on, or none. */
static int map_memory(struct iommu_domain *domain, struct file *memory, u32 first)
{
	struct insula_extent extent;
	u32 index;
	int err;

	for (index = first; insula_memory_chunk(memory, index, &extent); index++) {
		err = insula_iommu_map(domain, extent.start, extent.start, extent.size,
				       IOMMU_READ | IOMMU_WRITE | IOMMU_CACHE);
		if (err) {
			unmap_memory(domain, memory, first, index);
			return err;
		}
	}
	return 0;
}

/* The group must belong to nobody while its domain is changed. */
static int enter(struct insula_confinement *confinement)
{
	int err = iommu_group_claim_dma_owner(confinement->group, confinement);

	if (err)
		return err;
	err = iommu_attach_group(confinement->domain, confinement->group);
	if (err)
		iommu_group_release_dma_owner(confinement->group);
	return err;
}

struct insula_confinement *insula_confine(struct device *dev, struct file *memory)
{
	struct iommu_group *group = iommu_group_get(dev);
	struct insula_confinement *confinement;
	int err;

	if (!group)
		return NULL;
	err = iommu_group_for_each_dev(group, dev, is_other);
	if (err)
		goto put_group;
	confinement = kzalloc(sizeof(*confinement), GFP_KERNEL);
	if (!confinement) {
		err = -ENOMEM;
		goto put_group;
	}
	confinement->group = group;
	confinement->domain = insula_iommu_domain_alloc(dev);
	if (IS_ERR(confinement->domain)) {
		err = PTR_ERR(confinement->domain);
		goto free;
	}
	err = map_memory(confinement->domain, memory, 0);
	if (!err)
		err = enter(confinement);
	if (!err)
		return confinement;

	iommu_domain_free(confinement->domain);
free:
	kfree(confinement);
put_group:
	iommu_group_put(group);
	return ERR_PTR(err);
}

int insula_confinement_extend(struct insula_confinement *confinement, struct file *memory,
			      u32 first)
{
	return confinement ? map_memory(confinement->domain, memory, first) : 0;
}

void insula_confinement_reduce(struct insula_confinement *confinement, struct file *memory,
			       u32 first)
{
	if (confinement)
		unmap_memory(confinement->domain, memory, first, U32_MAX);
}

void insula_unconfine(struct insula_confinement *confinement)
{
	if (!confinement)
		return;
	iommu_detach_group(confinement->domain, confinement->group);
	iommu_domain_free(confinement->domain);
	iommu_group_release_dma_owner(confinement->group);
	iommu_group_put(confinement->group);
	kfree(confinement);
}
