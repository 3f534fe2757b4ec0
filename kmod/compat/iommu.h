/* SPDX-License-Identifier: GPL-2.0-only */
/* Differences between kernels in iommu.h. */
#ifndef INSULA_COMPAT_IOMMU_H
#define INSULA_COMPAT_IOMMU_H

#include <linux/err.h>
#include <linux/iommu.h>

/* 6.11, ("iommu: Introduce iommu_paging_domain_alloc() interface") */
static inline struct iommu_domain *insula_compat_domain_alloc(struct device *dev)
{
#ifdef INSULA_HAS_IOMMU_PAGING_DOMAIN_ALLOC
	return iommu_paging_domain_alloc(dev);
#else
	struct iommu_domain *domain = iommu_domain_alloc(dev->bus);

	return domain ? domain : ERR_PTR(-ENODEV);
#endif
}

/*
 * 6.3, ("iommu: Add iommu_group_has_isolated_msi()"). Before, a capability of all IOMMUs on x86.
 */
static inline bool insula_compat_isolates_interrupts(struct device *dev, struct iommu_group *group)
{
#ifdef INSULA_HAS_IOMMU_GROUP_HAS_ISOLATED_MSI
	return iommu_group_has_isolated_msi(group);
#else
	return device_iommu_capable(dev, IOMMU_CAP_INTR_REMAP);
#endif
}

/*
 * 6.3, 1369459b2e21 ("iommu: Add a gfp parameter to iommu_map()"), which replaced
 * iommu_map_atomic()
 */
#ifdef INSULA_HAS_IOMMU_MAP_ATOMIC
#define insula_iommu_map(domain, iova, phys, size, prot) \
	iommu_map(domain, iova, phys, size, prot)
#else
#define insula_iommu_map(domain, iova, phys, size, prot) \
	iommu_map(domain, iova, phys, size, prot, GFP_KERNEL)
#endif

#endif
