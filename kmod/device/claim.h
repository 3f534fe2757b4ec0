/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_CLAIM_H
#define INSULA_CLAIM_H

#include <linux/list.h>
#include <linux/pci.h>

#include "device/relay.h"
#include "insula_module.h"

#define INSULA_DEVICE_DRIVER	"insula"

/* A node's claim to a PCI function, for its implementation only: device.c, driver.c. */
struct insula_device_claim {
	struct list_head link;
	struct insula_device address;
	struct file *memory;			/* the node's; used while claiming */
	struct pci_dev *function;		/* NULL once it is returned */
	char *override;				/* the base's driver_override, or NULL */
	bool had_driver;			/* the base had a driver for it */
	struct insula_iommu_domain *iommu_domain;	/* while it is bound to our driver */
	struct insula_relay *relay;		/* the same, of a relayed function; or NULL */
	struct pci_saved_state *state;		/* as the base left it */
	struct list_head bound;			/* while it is bound to our driver */
};

/* Bind the function to our driver, from whatever driver the base has for it. */
int insula_device_claim_bind(struct insula_device_claim *claim);

/* Whether a function is bound to our driver. */
bool insula_device_is_bound(struct pci_dev *function);

/*
 * While it is bound: map the chunks of an object from number `first` on for it, all or none;
 * unmap them; enable its DMA and send its interrupts on (-EINVAL: no relay, or `count` messages
 * are more than it has); disable both.
 */
int insula_device_claim_extend(struct insula_device_claim *claim, struct file *memory, u32 first);
void insula_device_claim_reduce(struct insula_device_claim *claim, struct file *memory, u32 first);
int insula_device_claim_connect(struct insula_device_claim *claim,
				const struct insula_relay_target *target, u32 count);
void insula_device_claim_disable_dma(struct insula_device_claim *claim);

#endif
