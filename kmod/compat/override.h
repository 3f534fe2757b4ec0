/* SPDX-License-Identifier: GPL-2.0-only */
/* What differs between kernels in forcing a driver on a PCI function. */
#ifndef INSULA_COMPAT_OVERRIDE_H
#define INSULA_COMPAT_OVERRIDE_H

#include <linux/device.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/string.h>

/*
 * The name moved from struct pci_dev to struct device ("driver core: generalize
 * driver_override in struct device"), in stable kernels as well, so that no version
 * tells: Kbuild looks for the function.
 */
#ifdef INSULA_HAS_DEVICE_SET_DRIVER_OVERRIDE

/* Empty: none is forced. Takes the device's lock in kernels before the move. */
static inline int insula_override_set(struct pci_dev *function, const char *name)
{
	return device_set_driver_override(&function->dev, name);
}

/* *name: a copy to be freed, or NULL if none is forced. */
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
