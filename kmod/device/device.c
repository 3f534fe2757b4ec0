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
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "arch/x86/processor.h"
#include "compat/msi.h"
#include "compat/override.h"
#include "device/claim.h"
#include "device/device.h"
#include "device/iommu_domain.h"
#include "insula_monitor.h"

/* One claim or return at a time. */
static DEFINE_MUTEX(devices_lock);

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

/*
 * The node programs MSI messages for its own cores: nothing of the base may remap them. If the base
 * sends them on, it does so for a node that is not trusted, and something must remap them.
 */
static bool device_can_interrupt(struct pci_dev *function, bool relayed)
{
	if (relayed)
		return function->msix_cap && insula_iommu_remaps_interrupts(&function->dev);
	if (!function->msi_cap && !function->msix_cap)
		return false;
	return insula_processor_interrupts_directly(insula_msi_target(&function->dev));
}

static int device_check(struct pci_dev *function, bool relayed)
{
	if (function->hdr_type != PCI_HEADER_TYPE_NORMAL ||
	    !device_can_interrupt(function, relayed))
		return -EOPNOTSUPP;
	if (insula_device_is_bound(function))
		return -EBUSY;
	return device_is_alone(function) ? 0 : -EXDEV;
}

/* Save the base's binding, to be restored on return. */
static int device_claim_save_binding(struct insula_device_claim *claim)
{
	struct pci_dev *function = claim->function;

	kfree(claim->override);
	device_lock(&function->dev);
	claim->had_driver = function->dev.driver;
	device_unlock(&function->dev);
	return insula_override_copy(function, &claim->override);
}

static void device_claim_restore_binding(struct insula_device_claim *claim)
{
	struct pci_dev *function = claim->function;

	if (!device_is_registered(&function->dev))
		return;
	if (insula_override_set(function, claim->override ? claim->override : ""))
		pci_warn(function, "insula: cannot restore driver_override\n");
	if (claim->had_driver && device_attach(&function->dev) != 1)
		pci_warn(function, "insula: returned to the base, but no driver binds\n");
}

/* After an unplug it is not bound to our driver, and there is nothing to reset. */
static int device_claim_reset(struct insula_device_claim *claim)
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

static void device_claim_put(struct insula_device_claim *claim)
{
	pci_dev_put(claim->function);
	claim->function = NULL;
}

static void device_claim_return(struct insula_device_claim *claim)
{
	lockdep_assert_held(&devices_lock);
	if (device_claim_reset(claim))
		pci_err(claim->function, "insula: reset failed: it keeps the node's state\n");
	if (insula_device_is_bound(claim->function))
		device_release_driver(&claim->function->dev);
	device_claim_restore_binding(claim);
	device_claim_put(claim);
	claim->address.flags &= INSULA_DEVICE_RELAYED;
}

static void device_claim_free(struct insula_device_claim *claim)
{
	kfree(claim->state);
	kfree(claim->override);
	kfree(claim);
}

/* Take a function from the base and reset it. */
static int device_claim_take(struct insula_device_claim *claim, struct file *memory)
{
	bool relayed;
	int err;

	lockdep_assert_held(&devices_lock);
	claim->memory = memory;
	claim->function = pci_get_domain_bus_and_slot(claim->address.segment,
						      claim->address.bus,
						      claim->address.function);
	if (!claim->function)
		return -ENODEV;
	relayed = claim->address.flags & INSULA_DEVICE_RELAYED;
	err = device_check(claim->function, relayed);
	if (!err)
		err = device_claim_save_binding(claim);
	if (err) {
		device_claim_put(claim);
		return err;
	}
	err = insula_device_claim_bind(claim);
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
	claim->address.flags |= INSULA_DEVICE_ATTACHED;
	if (claim->iommu_domain)
		claim->address.flags |= INSULA_DEVICE_IOMMU;
	return 0;
}

int insula_device_claim(struct list_head *devices, const struct insula_device *address,
			struct file *memory)
{
	struct insula_device_claim *claim;
	int err;

	if (address->flags & ~INSULA_DEVICE_RELAYED || address->segment > U16_MAX ||
	    address->bus > U8_MAX || address->function > U8_MAX)
		return -EINVAL;
	claim = kzalloc(sizeof(*claim), GFP_KERNEL);
	if (!claim)
		return -ENOMEM;
	claim->address = *address;
	mutex_lock(&devices_lock);
	err = device_claim_take(claim, memory);
	mutex_unlock(&devices_lock);
	if (err) {
		device_claim_free(claim);
		return err;
	}
	list_add_tail(&claim->link, devices);
	return 0;
}

static int device_claim_retake(struct insula_device_claim *claim, struct file *memory,
			       struct file *shared)
{
	int err = device_claim_take(claim, memory);

	if (err || !shared)
		return err;
	err = insula_device_claim_extend(claim, shared, 0);
	if (err)
		device_claim_return(claim);
	return err;
}

int insula_devices_retake(struct list_head *devices, struct file *memory,
			  struct file *shared)
{
	struct insula_device_claim *claim;
	int err = 0;

	mutex_lock(&devices_lock);
	list_for_each_entry(claim, devices, link) {
		if (!claim->function)
			err = device_claim_retake(claim, memory, shared);
		if (err)
			break;
	}
	mutex_unlock(&devices_lock);
	if (err)
		insula_devices_return(devices);
	return err;
}

void insula_devices_reduce(struct list_head *devices, struct file *memory, u32 first)
{
	struct insula_device_claim *claim;

	mutex_lock(&devices_lock);
	list_for_each_entry(claim, devices, link)
		insula_device_claim_reduce(claim, memory, first);
	mutex_unlock(&devices_lock);
}

int insula_devices_extend(struct list_head *devices, struct file *memory, u32 first)
{
	struct insula_device_claim *claim;
	int err = 0;

	mutex_lock(&devices_lock);
	list_for_each_entry(claim, devices, link) {
		err = insula_device_claim_extend(claim, memory, first);
		if (err)
			break;
	}
	if (err)
		list_for_each_entry_continue_reverse(claim, devices, link)
			insula_device_claim_reduce(claim, memory, first);
	mutex_unlock(&devices_lock);
	return err;
}

static const struct insula_monitor_function *
device_described(const struct insula_device_claim *claim,
		 const struct insula_confined_functions *by)
{
	u32 i, address = claim->address.bus << 8 | claim->address.function;

	for (i = 0; i < by->count; i++)
		if (by->function[i].address == address && !claim->address.segment)
			return &by->function[i];
	return NULL;
}

static int device_connect(struct insula_device_claim *claim,
			  const struct insula_confined_functions *by)
{
	const struct insula_monitor_function *described = device_described(claim, by);
	struct insula_relay_target target = { .areas = by->areas };
	struct insula_monitor_function copy;

	if (!described)
		return -EINVAL;
	copy = *described; /* a process may have it mapped */
	if (!PAGE_ALIGNED(copy.messages) || copy.messages < by->extent.start ||
	    copy.messages - by->extent.start >= by->extent.size)
		return -EINVAL;
	target.table = phys_to_virt(copy.messages);
	return insula_device_claim_connect(claim, &target, copy.messages_count);
}

int insula_devices_connect(struct list_head *devices, const struct insula_confined_functions *by)
{
	struct insula_device_claim *claim;
	int err = 0;

	mutex_lock(&devices_lock);
	list_for_each_entry(claim, devices, link) {
		err = device_connect(claim, by);
		if (err)
			break;
	}
	mutex_unlock(&devices_lock);
	if (err)
		insula_devices_disable_dma(devices);
	return err;
}

void insula_devices_disable_dma(struct list_head *devices)
{
	struct insula_device_claim *claim;

	list_for_each_entry(claim, devices, link)
		insula_device_claim_disable_dma(claim);
}

void insula_devices_reset(struct list_head *devices)
{
	struct insula_device_claim *claim;

	mutex_lock(&devices_lock);
	list_for_each_entry(claim, devices, link)
		if (device_claim_reset(claim))
			pci_err(claim->function, "insula: reset failed\n");
	mutex_unlock(&devices_lock);
}

void insula_devices_return(struct list_head *devices)
{
	struct insula_device_claim *claim;

	mutex_lock(&devices_lock);
	list_for_each_entry(claim, devices, link)
		if (claim->function)
			device_claim_return(claim);
	mutex_unlock(&devices_lock);
}

void insula_devices_free(struct list_head *devices)
{
	struct insula_device_claim *claim, *next;

	list_for_each_entry_safe(claim, next, devices, link) {
		list_del(&claim->link);
		/* A node that could not be stopped keeps its devices: leak the claim. */
		if (!claim->function)
			device_claim_free(claim);
	}
}

u32 insula_devices_list(const struct list_head *devices, struct insula_device *list, u32 room)
{
	const struct insula_device_claim *claim;
	u32 count = 0;

	list_for_each_entry(claim, devices, link) {
		if (count < room)
			list[count] = claim->address;
		count++;
	}
	return count;
}
