// SPDX-License-Identifier: GPL-2.0-only
/*
 * IOMMU domains that restrict a device's DMA to a node's memory.
 *
 * A node's kernel sees no IOMMU and programs physical addresses. So the device gets a domain
 * that maps the node's memory one to one. MSIs need no mapping: on x86 the IOMMU recognizes
 * them by their address before translation.
 */
#include "insula_module.h"

#include <linux/pci.h>
#include <linux/slab.h>

#include "compat/iommu.h"
#include "device/iommu_domain.h"
#include "mem/memory.h"

struct insula_iommu_domain {
	struct iommu_group *group;
	struct iommu_domain *domain;
};

bool insula_iommu_remaps_interrupts(struct device *dev)
{
	struct iommu_group *group = iommu_group_get(dev);
	bool remaps = group && insula_compat_isolates_interrupts(dev, group);

	iommu_group_put(group);
	return remaps;
}

/* Another device of the group, except bridges, which do no DMA of their own. */
static int iommu_domain_is_other(struct device *dev, void *data)
{
	if (dev == data)
		return 0;
	return dev_is_pci(dev) && pci_is_bridge(to_pci_dev(dev)) ? 0 : -EXDEV;
}

/* Unmap the chunks from number `first` up to `end`. */
static void iommu_domain_unmap_memory(struct iommu_domain *domain, struct file *memory, u32 first,
				      u32 end)
{
	struct insula_extent extent;

	while (first < end && insula_memory_chunk(memory, first++, &extent))
		iommu_unmap(domain, extent.start, extent.size);
}

/* Map all chunks from number `first` on, or none. */
static int iommu_domain_map_memory(struct iommu_domain *domain, struct file *memory, u32 first)
{
	struct insula_extent extent;
	u32 index;
	int err;

	for (index = first; insula_memory_chunk(memory, index, &extent); index++) {
		err = insula_iommu_map(domain, extent.start, extent.start, extent.size,
				       IOMMU_READ | IOMMU_WRITE | IOMMU_CACHE);
		if (err) {
			iommu_domain_unmap_memory(domain, memory, first, index);
			return err;
		}
	}
	return 0;
}

/* Changing a group's domain requires claiming its DMA ownership. */
static int iommu_domain_attach(struct insula_iommu_domain *iommu_domain)
{
	int err = iommu_group_claim_dma_owner(iommu_domain->group, iommu_domain);

	if (err)
		return err;
	err = iommu_attach_group(iommu_domain->domain, iommu_domain->group);
	if (err)
		iommu_group_release_dma_owner(iommu_domain->group);
	return err;
}

struct insula_iommu_domain *insula_iommu_domain_create(struct device *dev, struct file *memory)
{
	struct iommu_group *group = iommu_group_get(dev);
	struct insula_iommu_domain *iommu_domain;
	int err;

	if (!group)
		return NULL;
	err = iommu_group_for_each_dev(group, dev, iommu_domain_is_other);
	if (err)
		goto put_group;
	iommu_domain = kzalloc(sizeof(*iommu_domain), GFP_KERNEL);
	if (!iommu_domain) {
		err = -ENOMEM;
		goto put_group;
	}
	iommu_domain->group = group;
	iommu_domain->domain = insula_compat_domain_alloc(dev);
	if (IS_ERR(iommu_domain->domain)) {
		err = PTR_ERR(iommu_domain->domain);
		goto free;
	}
	err = iommu_domain_map_memory(iommu_domain->domain, memory, 0);
	if (!err)
		err = iommu_domain_attach(iommu_domain);
	if (!err)
		return iommu_domain;

	iommu_domain_free(iommu_domain->domain);
free:
	kfree(iommu_domain);
put_group:
	iommu_group_put(group);
	return ERR_PTR(err);
}

int insula_iommu_domain_extend(struct insula_iommu_domain *iommu_domain, struct file *memory,
			       u32 first)
{
	return iommu_domain ? iommu_domain_map_memory(iommu_domain->domain, memory, first) : 0;
}

void insula_iommu_domain_reduce(struct insula_iommu_domain *iommu_domain, struct file *memory,
				u32 first)
{
	if (iommu_domain)
		iommu_domain_unmap_memory(iommu_domain->domain, memory, first, U32_MAX);
}

void insula_iommu_domain_destroy(struct insula_iommu_domain *iommu_domain)
{
	if (!iommu_domain)
		return;
	iommu_detach_group(iommu_domain->domain, iommu_domain->group);
	iommu_domain_free(iommu_domain->domain);
	iommu_group_release_dma_owner(iommu_domain->group);
	iommu_group_put(iommu_domain->group);
	kfree(iommu_domain);
}
