/* SPDX-License-Identifier: GPL-2.0-only */
/* What differs between kernels in how message interrupts are arranged. */
#ifndef INSULA_COMPAT_MSI_H
#define INSULA_COMPAT_MSI_H

#include <linux/device.h>
#include <linux/irqdomain.h>

/*
 * The domain that a device's messages go to: the processors' vectors, or a unit that
 * remaps them. Before 6.2 there was one of PCI messages in between ("PCI/MSI: Provide
 * prepare_desc() MSI domain op" and its series: domains per device).
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
