// SPDX-License-Identifier: GPL-2.0-only
/*
 * The driver to which a node's PCI functions are bound on the base. It does not use them: it
 * keeps other drivers away, and their upstream ports powered.
 */
#include "insula_module.h"

#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/preempt.h>
#include <linux/rculist.h>
#include <linux/slab.h>

#include "compat/override.h"
#include "device/claim.h"
#include "device/device.h"
#include "device/iommu_domain.h"

static struct {
	struct insula_device_claim *expected;	/* by driver_probe() */
	/*
	 * Protects the state of bound claims. A function may be unbound at any time, without the
	 * lock of claims and with the device's lock held: so this nests inside both, and nothing
	 * waits for the function under it.
	 */
	struct mutex lock;
	struct list_head claims;		/* read by RCU */
} bound = {
	.lock = __MUTEX_INITIALIZER(bound.lock),
	.claims = LIST_HEAD_INIT(bound.claims),
};

static int driver_enable(struct insula_device_claim *claim)
{
	struct pci_dev *function = claim->function;
	int err = pci_enable_device(function); /* and its upstream ports */

	if (err)
		return err;
	pci_clear_master(function);
	pci_intx(function, false);
	err = pci_request_regions(function, INSULA_DEVICE_DRIVER);
	if (err)
		goto disable;
	pci_save_state(function);
	kfree(claim->state);
	claim->state = pci_store_saved_state(function);
	if (claim->state)
		return 0;
	err = -ENOMEM;
	pci_release_regions(function);
disable:
	pci_disable_device(function);
	return err;
}

static void driver_disable(struct pci_dev *function)
{
	pci_release_regions(function);
	pci_disable_device(function);
}

/* NULL: its interrupts go to the node directly. */
static struct insula_relay *driver_relay(const struct insula_device_claim *claim,
					 const struct insula_iommu_domain *iommu_domain)
{
	if (!(claim->address.flags & INSULA_DEVICE_RELAYED))
		return NULL;
	return iommu_domain ? insula_relay_create(claim->function) : ERR_PTR(-EOPNOTSUPP);
}

/* Anybody may write our name to a driver_override: bind only the expected function. */
static int driver_probe(struct pci_dev *function, const struct pci_device_id *id)
{
	struct insula_device_claim *claim = READ_ONCE(bound.expected);
	struct insula_iommu_domain *iommu_domain;
	struct insula_relay *relay;
	int err;

	if (!claim || claim->function != function)
		return -ENODEV;
	iommu_domain = insula_iommu_domain_create(&function->dev, claim->memory);
	if (IS_ERR(iommu_domain))
		return PTR_ERR(iommu_domain);
	err = driver_enable(claim);
	if (err) {
		insula_iommu_domain_destroy(iommu_domain);
		return err;
	}
	relay = driver_relay(claim, iommu_domain);
	if (IS_ERR(relay)) {
		driver_disable(function);
		insula_iommu_domain_destroy(iommu_domain);
		return PTR_ERR(relay);
	}
	mutex_lock(&bound.lock);
	claim->iommu_domain = iommu_domain;
	claim->relay = relay;
	pci_set_drvdata(function, claim);
	list_add_tail_rcu(&claim->bound, &bound.claims);
	mutex_unlock(&bound.lock);
	return 0;
}

/* On its return, or when it is unplugged. */
static void driver_remove(struct pci_dev *function)
{
	struct insula_device_claim *claim = pci_get_drvdata(function);
	struct insula_iommu_domain *iommu_domain;
	struct insula_relay *relay;

	mutex_lock(&bound.lock);
	list_del_rcu(&claim->bound);
	iommu_domain = claim->iommu_domain;
	claim->iommu_domain = NULL;
	relay = claim->relay;
	claim->relay = NULL;
	pci_set_drvdata(function, NULL);
	pci_clear_master(function);
	mutex_unlock(&bound.lock);
	synchronize_rcu();
	insula_relay_destroy(relay);
	driver_disable(function);
	insula_iommu_domain_destroy(iommu_domain);
}

static void driver_shutdown(struct pci_dev *function)
{
	pci_clear_master(function);
}

static struct pci_driver driver = {
	.name = INSULA_DEVICE_DRIVER,
	.probe = driver_probe,
	.remove = driver_remove,
	.shutdown = driver_shutdown,
	.driver_managed_dma = true,
	.driver = {
		.suppress_bind_attrs = true,
	},
};

int insula_devices_init(void)
{
	return pci_register_driver(&driver);
}

void insula_devices_exit(void)
{
	pci_unregister_driver(&driver);
}

int insula_device_claim_extend(struct insula_device_claim *claim, struct file *memory, u32 first)
{
	int err;

	mutex_lock(&bound.lock);
	err = insula_iommu_domain_extend(claim->iommu_domain, memory, first);
	mutex_unlock(&bound.lock);
	return err;
}

void insula_device_claim_reduce(struct insula_device_claim *claim, struct file *memory, u32 first)
{
	mutex_lock(&bound.lock);
	insula_iommu_domain_reduce(claim->iommu_domain, memory, first);
	mutex_unlock(&bound.lock);
}

int insula_device_claim_connect(struct insula_device_claim *claim,
				const struct insula_relay_target *target, u32 count)
{
	int err = -EINVAL;

	mutex_lock(&bound.lock);
	if (claim->relay && count <= insula_relay_count(claim->relay)) {
		insula_relay_connect(claim->relay, target);
		pci_set_master(claim->function);
		err = 0;
	}
	mutex_unlock(&bound.lock);
	return err;
}

/* After an unplug another device may be in its place. */
void insula_device_claim_disable_dma(struct insula_device_claim *claim)
{
	mutex_lock(&bound.lock);
	insula_relay_disconnect(claim->relay);
	if (claim->function && pci_get_drvdata(claim->function) == claim)
		pci_clear_master(claim->function);
	mutex_unlock(&bound.lock);
}

bool insula_device_is_bound(struct pci_dev *function)
{
	return function->dev.driver == &driver.driver;
}

int insula_device_claim_bind(struct insula_device_claim *claim)
{
	struct pci_dev *function = claim->function;
	int err = insula_override_set(function, INSULA_DEVICE_DRIVER);

	if (err)
		return err;
	device_release_driver(&function->dev);
	WRITE_ONCE(bound.expected, claim);
	err = device_driver_attach(&driver.driver, &function->dev);
	WRITE_ONCE(bound.expected, NULL);
	return err;
}

/*
 * An NMI may have interrupted a holder of the configuration space's lock: then DMA stays
 * enabled, like that of the base's own devices in a crash.
 */
void insula_devices_disable_dma_all(void)
{
	struct insula_device_claim *claim;

	if (in_nmi())
		return;
	rcu_read_lock();
	list_for_each_entry_rcu(claim, &bound.claims, bound)
		pci_clear_master(claim->function);
	rcu_read_unlock();
}
