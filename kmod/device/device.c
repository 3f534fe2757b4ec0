// SPDX-License-Identifier: GPL-2.0-only
/*
 * PCI functions assigned to nodes.
 *
 * From claim to return a function is bound to a driver of this module that does not use it: so
 * no other driver of the base can bind it, the base keeps it and its upstream ports powered,
 * and the module manages its DMA. Binding uses driver_override, as user space does; the former
 * value and driver are restored.
 *
 * The node's writes to its configuration space are undone by a reset and by the state saved at
 * the claim.
 */
#include "insula_module.h"

#include <linux/irqdomain.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/preempt.h>
#include <linux/rculist.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "arch/x86/processor.h"
#include "compat/msi.h"
#include "compat/override.h"
#include "device/device.h"
#include "device/iommu_domain.h"

#define DRIVER_NAME	"insula"

struct device_claim {
	struct list_head link;
	struct insula_device address;
	struct file *memory;			/* the node's; used while claiming */
	struct pci_dev *function;		/* NULL once it is returned */
	char *override;				/* the base's driver_override, or NULL */
	bool had_driver;				/* the base had a driver for it */
	struct insula_iommu_domain *iommu_domain;	/* while it is bound to our driver */
	struct pci_saved_state *state;		/* as the base left it */
	struct list_head bound;			/* while it is bound to our driver */
};

static struct {
	struct mutex lock;			/* one claim or return at a time */
	struct device_claim *expected;		/* by device_claim_probe() */
	/*
	 * Protects the state of claims bound to our driver. A function may be unbound at any
	 * time, without the lock above and with the device's lock held: so this nests inside
	 * both, and nothing waits for the function under it.
	 */
	struct mutex bound_lock;
	struct list_head bound;			/* claims bound to our driver; read by RCU */
} claims = {
	.lock = __MUTEX_INITIALIZER(claims.lock),
	.bound_lock = __MUTEX_INITIALIZER(claims.bound_lock),
	.bound = LIST_HEAD_INIT(claims.bound),
};

static int device_claim_enable(struct device_claim *claim)
{
	struct pci_dev *function = claim->function;
	int err = pci_enable_device(function); /* and its upstream ports */

	if (err)
		return err;
	pci_clear_master(function);
	pci_intx(function, false);
	err = pci_request_regions(function, DRIVER_NAME);
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

/* Anybody may write our name to a driver_override: bind only the expected function. */
static int device_claim_probe(struct pci_dev *function, const struct pci_device_id *id)
{
	struct device_claim *claim = READ_ONCE(claims.expected);
	struct insula_iommu_domain *iommu_domain;
	int err;

	if (!claim || claim->function != function)
		return -ENODEV;
	iommu_domain = insula_iommu_domain_create(&function->dev, claim->memory);
	if (IS_ERR(iommu_domain))
		return PTR_ERR(iommu_domain);
	err = device_claim_enable(claim);
	if (err) {
		insula_iommu_domain_destroy(iommu_domain);
		return err;
	}
	mutex_lock(&claims.bound_lock);
	claim->iommu_domain = iommu_domain;
	pci_set_drvdata(function, claim);
	list_add_tail_rcu(&claim->bound, &claims.bound);
	mutex_unlock(&claims.bound_lock);
	return 0;
}

/* On its return, or when it is unplugged. */
static void device_claim_remove(struct pci_dev *function)
{
	struct device_claim *claim = pci_get_drvdata(function);
	struct insula_iommu_domain *iommu_domain;

	mutex_lock(&claims.bound_lock);
	list_del_rcu(&claim->bound);
	iommu_domain = claim->iommu_domain;
	claim->iommu_domain = NULL;
	pci_set_drvdata(function, NULL);
	pci_clear_master(function);
	mutex_unlock(&claims.bound_lock);
	synchronize_rcu();
	pci_release_regions(function);
	pci_disable_device(function);
	insula_iommu_domain_destroy(iommu_domain);
}

static void device_claim_shutdown(struct pci_dev *function)
{
	pci_clear_master(function);
}

static struct pci_driver driver = {
	.name = DRIVER_NAME,
	.probe = device_claim_probe,
	.remove = device_claim_remove,
	.shutdown = device_claim_shutdown,
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

static int device_claim_extend(struct device_claim *claim, struct file *memory, u32 first)
{
	int err;

	mutex_lock(&claims.bound_lock);
	err = insula_iommu_domain_extend(claim->iommu_domain, memory, first);
	mutex_unlock(&claims.bound_lock);
	return err;
}

static void device_claim_reduce(struct device_claim *claim, struct file *memory, u32 first)
{
	mutex_lock(&claims.bound_lock);
	insula_iommu_domain_reduce(claim->iommu_domain, memory, first);
	mutex_unlock(&claims.bound_lock);
}

/* Only while it is bound: after an unplug another device may be in its place. */
static void device_claim_disable_dma(struct device_claim *claim)
{
	mutex_lock(&claims.bound_lock);
	if (claim->function && pci_get_drvdata(claim->function) == claim)
		pci_clear_master(claim->function);
	mutex_unlock(&claims.bound_lock);
}

static bool device_is_ours(struct pci_dev *function)
{
	return function->dev.driver == &driver.driver;
}

static int device_count(struct pci_dev *function, void *data)
{
	++*(unsigned int *)data;
	return 0;
}

static bool device_is_alone(struct pci_dev *function)
{
	unsigned int functions = 0;

	if (pci_is_root_bus(function->bus) || function->is_virtfn || pci_num_vf(function))
		return false;
	pci_walk_bus(function->bus, device_count, &functions);
	return functions == 1;
}

/* The node programs MSI messages for its own cores: nothing of the base may remap them. */
static bool device_interrupts_directly(struct pci_dev *function)
{
	if (!function->msi_cap && !function->msix_cap)
		return false;
	return insula_processor_interrupts_directly(insula_msi_target(&function->dev));
}

static int device_check(struct pci_dev *function)
{
	if (function->hdr_type != PCI_HEADER_TYPE_NORMAL || !device_interrupts_directly(function))
		return -EOPNOTSUPP;
	if (device_is_ours(function))
		return -EBUSY;
	return device_is_alone(function) ? 0 : -EXDEV;
}

/* Save the base's binding, to be restored on return. */
static int device_claim_save_binding(struct device_claim *claim)
{
	struct pci_dev *function = claim->function;

	kfree(claim->override);
	device_lock(&function->dev);
	claim->had_driver = function->dev.driver;
	device_unlock(&function->dev);
	return insula_override_copy(function, &claim->override);
}

static void device_claim_restore_binding(struct device_claim *claim)
{
	struct pci_dev *function = claim->function;

	if (!device_is_registered(&function->dev))
		return;
	if (insula_override_set(function, claim->override ? claim->override : ""))
		pci_warn(function, "insula: cannot restore driver_override\n");
	if (claim->had_driver && device_attach(&function->dev) != 1)
		pci_warn(function, "insula: returned to the base, but no driver binds\n");
}

static int device_claim_bind(struct device_claim *claim)
{
	struct pci_dev *function = claim->function;
	int err = insula_override_set(function, DRIVER_NAME);

	if (err)
		return err;
	device_release_driver(&function->dev);
	WRITE_ONCE(claims.expected, claim);
	err = device_driver_attach(&driver.driver, &function->dev);
	WRITE_ONCE(claims.expected, NULL);
	return err;
}

/* After an unplug it is not bound to our driver, and there is nothing to reset. */
static int device_claim_reset(struct device_claim *claim)
{
	struct pci_dev *function = claim->function;
	int err;

	if (!function || pci_get_drvdata(function) != claim)
		return 0;
	pci_clear_master(function);
	err = pci_reset_function(function);
	pci_load_saved_state(function, claim->state);
	pci_restore_state(function);
	return err;
}

static void device_claim_put(struct device_claim *claim)
{
	pci_dev_put(claim->function);
	claim->function = NULL;
}

static void device_claim_return(struct device_claim *claim)
{
	lockdep_assert_held(&claims.lock);
	if (device_claim_reset(claim))
		pci_err(claim->function, "insula: reset failed: it keeps the node's state\n");
	if (device_is_ours(claim->function))
		device_release_driver(&claim->function->dev);
	device_claim_restore_binding(claim);
	device_claim_put(claim);
	claim->address.flags &= ~INSULA_DEVICE_ATTACHED;
}

static void device_claim_free(struct device_claim *claim)
{
	kfree(claim->state);
	kfree(claim->override);
	kfree(claim);
}

/* Take a function from the base and reset it. */
static int device_claim_take(struct device_claim *claim, struct file *memory)
{
	int err;

	lockdep_assert_held(&claims.lock);
	claim->memory = memory;
	claim->function = pci_get_domain_bus_and_slot(claim->address.segment,
						      claim->address.bus,
						      claim->address.function);
	if (!claim->function)
		return -ENODEV;
	err = device_check(claim->function);
	if (!err)
		err = device_claim_save_binding(claim);
	if (err) {
		device_claim_put(claim);
		return err;
	}
	err = device_claim_bind(claim);
	if (err) {
		device_claim_restore_binding(claim);
		device_claim_put(claim);
		return err;
	}
	err = device_claim_reset(claim);
	if (err) {
		device_claim_return(claim);
		return err == -ENOTTY ? -EOPNOTSUPP : err;
	}
	claim->address.flags = INSULA_DEVICE_ATTACHED;
	if (claim->iommu_domain)
		claim->address.flags |= INSULA_DEVICE_IOMMU;
	return 0;
}

int insula_device_claim(struct list_head *devices, const struct insula_device *address,
			struct file *memory)
{
	struct device_claim *claim;
	int err;

	if (address->flags || address->segment > U16_MAX || address->bus > U8_MAX ||
	    address->function > U8_MAX)
		return -EINVAL;
	claim = kzalloc(sizeof(*claim), GFP_KERNEL);
	if (!claim)
		return -ENOMEM;
	claim->address = *address;
	mutex_lock(&claims.lock);
	err = device_claim_take(claim, memory);
	mutex_unlock(&claims.lock);
	if (err) {
		device_claim_free(claim);
		return err;
	}
	list_add_tail(&claim->link, devices);
	return 0;
}

static int device_claim_retake(struct device_claim *claim, struct file *memory, struct file *shared)
{
	int err = device_claim_take(claim, memory);

	if (err || !shared)
		return err;
	err = device_claim_extend(claim, shared, 0);
	if (err)
		device_claim_return(claim);
	return err;
}

int insula_devices_retake(struct list_head *devices, struct file *memory,
			  struct file *shared)
{
	struct device_claim *claim;
	int err = 0;

	mutex_lock(&claims.lock);
	list_for_each_entry(claim, devices, link) {
		if (!claim->function)
			err = device_claim_retake(claim, memory, shared);
		if (err)
			break;
	}
	mutex_unlock(&claims.lock);
	if (err)
		insula_devices_return(devices);
	return err;
}

void insula_devices_reduce(struct list_head *devices, struct file *memory, u32 first)
{
	struct device_claim *claim;

	mutex_lock(&claims.lock);
	list_for_each_entry(claim, devices, link)
		device_claim_reduce(claim, memory, first);
	mutex_unlock(&claims.lock);
}

int insula_devices_extend(struct list_head *devices, struct file *memory, u32 first)
{
	struct device_claim *claim;
	int err = 0;

	mutex_lock(&claims.lock);
	list_for_each_entry(claim, devices, link) {
		err = device_claim_extend(claim, memory, first);
		if (err)
			break;
	}
	if (err)
		list_for_each_entry_continue_reverse(claim, devices, link)
			device_claim_reduce(claim, memory, first);
	mutex_unlock(&claims.lock);
	return err;
}

void insula_devices_disable_dma(struct list_head *devices)
{
	struct device_claim *claim;

	list_for_each_entry(claim, devices, link)
		device_claim_disable_dma(claim);
}

/*
 * An NMI may have interrupted a holder of the configuration space's lock: then DMA stays
 * enabled, like that of the base's own devices in a crash.
 */
void insula_devices_disable_dma_all(void)
{
	struct device_claim *claim;

	if (in_nmi())
		return;
	rcu_read_lock();
	list_for_each_entry_rcu(claim, &claims.bound, bound)
		pci_clear_master(claim->function);
	rcu_read_unlock();
}

void insula_devices_reset(struct list_head *devices)
{
	struct device_claim *claim;

	mutex_lock(&claims.lock);
	list_for_each_entry(claim, devices, link)
		if (device_claim_reset(claim))
			pci_err(claim->function, "insula: reset failed\n");
	mutex_unlock(&claims.lock);
}

void insula_devices_return(struct list_head *devices)
{
	struct device_claim *claim;

	mutex_lock(&claims.lock);
	list_for_each_entry(claim, devices, link)
		if (claim->function)
			device_claim_return(claim);
	mutex_unlock(&claims.lock);
}

void insula_devices_free(struct list_head *devices)
{
	struct device_claim *claim, *next;

	list_for_each_entry_safe(claim, next, devices, link) {
		list_del(&claim->link);
		/* A node that could not be stopped keeps its devices: leak the claim. */
		if (!claim->function)
			device_claim_free(claim);
	}
}

u32 insula_devices_list(const struct list_head *devices, struct insula_device *list, u32 room)
{
	const struct device_claim *claim;
	u32 count = 0;

	list_for_each_entry(claim, devices, link) {
		if (count < room)
			list[count] = claim->address;
		count++;
	}
	return count;
}
