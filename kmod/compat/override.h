/* SPDX-License-Identifier: GPL-2.0-only */
/* Differences between kernels in driver_override of PCI functions. */
#ifndef INSULA_COMPAT_OVERRIDE_H
#define INSULA_COMPAT_OVERRIDE_H

#include <linux/device.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/string.h>

/*
 * The name moved from struct pci_dev to struct device ("driver core: generalize driver_override
 * in struct device"), also in stable kernels: so Kbuild looks for the function.
 */
#ifdef INSULA_HAS_DEVICE_SET_DRIVER_OVERRIDE

/* Empty: none. Takes the device's lock in kernels before the move. */
static inline int insula_override_set(struct pci_dev *function, const char *name)
{
	return device_set_driver_override(&function->dev, name);
}

/* *name: a copy to be freed by the caller, or NULL for none. */
static inline int insula_override_copy(struct pci_dev *function, char **name)
{
	struct device *dev = &function->dev;
	bool forced;

	spin_lock(&dev->driver_override.lock);
	forced = dev->driver_override.name;
	*name = kstrdup(dev->driver_override.name, GFP_ATOMIC);
	spin_unlock(&dev->driver_override.lock);
	return forced && !*name ? -ENOMEM : 0;
}

#else

static inline int insula_override_set(struct pci_dev *function, const char *name)
{
	return driver_set_override(&function->dev, &function->driver_override, name,
				   strlen(name));
}

static inline int insula_override_copy(struct pci_dev *function, char **name)
{
	bool forced;

	device_lock(&function->dev);
	forced = function->driver_override;
	*name = kstrdup(function->driver_override, GFP_KERNEL);
	device_unlock(&function->dev);
	return forced && !*name ? -ENOMEM : 0;
}

#endif

#endif
