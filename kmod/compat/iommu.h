/* SPDX-License-Identifier: GPL-2.0-only */
/* What differs between kernels in iommu.h. */
#ifndef INSULA_COMPAT_IOMMU_H
#define INSULA_COMPAT_IOMMU_H

#include <linux/err.h>
#include <linux/iommu.h>
#include <linux/version.h>

/* 6.11, ("iommu: Introduce iommu_paging_domain_alloc() interface") */
static inline struct iommu_domain *insula_iommu_domain_alloc(struct device *dev)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 11, 0)
	struct iommu_domain *domain = iommu_domain_alloc(dev->bus);

	return domain ? domain : ERR_PTR(-ENODEV);
#else
	return iommu_paging_domain_alloc(dev);
#endif
}

/* 6.3, 1369459b2e21 ("iommu: Add a gfp parameter to iommu_map()") */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
#define insula_iommu_map(domain, iova, phys, size, prot) \
	iommu_map(domain, iova, phys, size, prot)
#else
#define insula_iommu_map(domain, iova, phys, size, prot) \
	iommu_map(domain, iova, phys, size, prot, GFP_KERNEL)
#endif

#endif
