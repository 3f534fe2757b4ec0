/* SPDX-License-Identifier: GPL-2.0-only */
/* Differences between kernels in MSI domains. */
#ifndef INSULA_COMPAT_MSI_H
#define INSULA_COMPAT_MSI_H

#include <linux/device.h>
#include <linux/irqdomain.h>

/*
 * Parent domain of a device's MSIs: the vector domain, or an interrupt remapping unit. Before
 * 6.2 a global PCI/MSI domain was in between ("PCI/MSI: Provide prepare_desc() MSI domain op"
 * and its series: per-device domains).
 */
static inline struct irq_domain *insula_msi_target(struct device *dev)
{
	struct irq_domain *domain = dev_get_msi_domain(dev);

#ifdef INSULA_HAS_MSI_CREATE_DEVICE_IRQ_DOMAIN
	return domain;
#else
	return domain ? domain->parent : NULL;
#endif
}

#endif
