/* SPDX-License-Identifier: GPL-2.0-only */
/* What differs between kernels in how message interrupts are arranged. */
#ifndef INSULA_COMPAT_MSI_H
#define INSULA_COMPAT_MSI_H

#include <linux/device.h>
#include <linux/irqdomain.h>
#include <linux/version.h>

/*
 * The domain that a device's messages go to: the processors' vectors, or a unit that
 * remaps them. Before 6.2 there was one of PCI messages in between ("PCI/MSI: Provide
 * prepare_desc() MSI domain op" and its series: domains per device).
 */
static inline struct irq_domain *insula_msi_target(struct device *dev)
{
	struct irq_domain *domain = dev_get_msi_domain(dev);

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 2, 0)
	return domain ? domain->parent : NULL;
#else
	return domain;
#endif
}

#endif
