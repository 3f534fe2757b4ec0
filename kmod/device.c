// SPDX-License-Identifier: GPL-2.0-only
/*
 * PCI functions that are a node's.
 *
 * From claim to return a function is bound to a driver of this module, which does
 * nothing with it: so no other driver of the base can have it, the base keeps it and
 * the ports above it awake, and its DMA is nobody's but ours to arrange. Binding is by
 * driver_override, as user space does it; what was there before is put back.
 *
 * What the node writes to its configuration space is undone by a reset and by the
 * state that was saved when it was claimed.
 */
#include "insula_module.h"

#include <linux/irqdomain.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/preempt.h>
#include <linux/rculist.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include <asm/irqdomain.h>

#include "compat/msi.h"
#include "compat/override.h"
#include "confine.h"
#include "device.h"

#define DRIVER_NAME	"insula"

struct device_claim {
	struct list_head link;
	struct insula_device address;
	struct file *memory;			/* the claimer's; used while claiming */
	struct pci_dev *function;		/* NULL when it has been given back */
	char *override;				/* the base's driver_override, or NULL */
	bool driven;				/* the base had a driver for it */
	struct insula_confinement *confinement;	/* while it is bound to our driver */
	struct pci_saved_state *state;		/* how the base left it */
	struct list_head bound;			/* while our driver has it */
};

static struct {
	struct mutex lock;			/* one claim or return at a time */
	struct device_claim *expected;		/* by probe() */
	/*
	 * What a claim has while its function is bound to our driver. That may be unbound at
	 * any moment, without the lock above and with the function's own: so this is taken
	 * last, and nothing of the function is waited for with it.
	 */
	struct mutex bound_lock;
	struct list_head bound;			/* all that our driver has; read by RCU */
} claims = {
	.lock = __MUTEX_INITIALIZER(claims.lock),
	.bound_lock = __MUTEX_INITIALIZER(claims.bound_lock),
	.bound = LIST_HEAD_INIT(claims.bound),
};

static int enable(struct device_claim *claim)
{
	struct pci_dev *function = claim->function;
	int err = pci_enable_device(function); /* and the ports above it */

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

/* Anybody may write our name to a driver_override: only what we expect is taken. */
static int probe(struct pci_dev *function, const struct pci_device_id *id)
{
	struct device_claim *claim = READ_ONCE(claims.expected);
	struct insula_confinement *confinement;
	int err;

	if (!claim || claim->function != function)
		return -ENODEV;
	confinement = insula_confine(&function->dev, claim->memory);
	if (IS_ERR(confinement))
		return PTR_ERR(confinement);
	err = enable(claim);
	if (err) {
		insula_unconfine(confinement);
		return err;
	}
	mutex_lock(&claims.bound_lock);
	claim->confinement = confinement;
	pci_set_drvdata(function, claim);
	list_add_tail_rcu(&claim->bound, &claims.bound);
	mutex_unlock(&claims.bound_lock);
	return 0;
}

/* On its return, or since it was unplugged. */
static void remove(struct pci_dev *function)
{
	struct device_claim *claim = pci_get_drvdata(function);
	struct insula_confinement *confinement;

	mutex_lock(&claims.bound_lock);
	list_del_rcu(&claim->bound);
	confinement = claim->confinement;
	claim->confinement = NULL;
	pci_set_drvdata(function, NULL);
	pci_clear_master(function);
	mutex_unlock(&claims.bound_lock);
	synchronize_rcu();
	pci_release_regions(function);
	pci_disable_device(function);
	insula_unconfine(confinement);
}

static void shutdown(struct pci_dev *function)
{
	pci_clear_master(function);
}

static struct pci_driver driver = {
	.name = DRIVER_NAME,
	.probe = probe,
	.remove = remove,
	.shutdown = shutdown,
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

static int extend(struct device_claim *claim, struct file *memory, u32 first)
{
	int err;

	mutex_lock(&claims.bound_lock);
	err = insula_confinement_extend(claim->confinement, memory, first);
	mutex_unlock(&claims.bound_lock);
	return err;
}

static void reduce(struct device_claim *claim, struct file *memory, u32 first)
{
	mutex_lock(&claims.bound_lock);
	insula_confinement_reduce(claim->confinement, memory, first);
	mutex_unlock(&claims.bound_lock);
}

/* What is at the place of one that was unplugged may be the base's. */
static void silence(struct device_claim *claim)
{
	mutex_lock(&claims.bound_lock);
	if (claim->function && pci_get_drvdata(claim->function) == claim)
		pci_clear_master(claim->function);
	mutex_unlock(&claims.bound_lock);
}

static bool is_ours(struct pci_dev *function)
{
	return function->dev.driver == &driver.driver;
}

static int count(struct pci_dev *function, void *data)
{
	++*(unsigned int *)data;
	return 0;
}

static bool is_alone(struct pci_dev *function)
{
	unsigned int functions = 0;

	if (pci_is_root_bus(function->bus) || function->is_virtfn || pci_num_vf(function))
		return false;
	pci_walk_bus(function->bus, count, &functions);
	return functions == 1;
}

/* A node writes the address and the vector of a core of its own into its device. */
static bool interrupts_directly(struct pci_dev *function)
{
	if (!function->msi_cap && !function->msix_cap)
		return false;
	return insula_msi_target(&function->dev) == x86_vector_domain;
}

static int check(struct pci_dev *function)
{
	if (function->hdr_type != PCI_HEADER_TYPE_NORMAL || !interrupts_directly(function))
		return -EOPNOTSUPP;
	if (is_ours(function))
		return -EBUSY;
	return is_alone(function) ? 0 : -EXDEV;
}

/* What the base has arranged for it, to be put back. */
static int remember(struct device_claim *claim)
{
	struct pci_dev *function = claim->function;

	kfree(claim->override);
	device_lock(&function->dev);
	claim->driven = function->dev.driver;
	device_unlock(&function->dev);
	return insula_override_copy(function, &claim->override);
}

static void put_back(struct device_claim *claim)
{
	struct pci_dev *function = claim->function;

	if (!device_is_registered(&function->dev))
		return;
	if (insula_override_set(function, claim->override ? claim->override : ""))
		pci_warn(function, "insula: its driver_override is lost\n");
	if (claim->driven && device_attach(&function->dev) != 1)
		pci_warn(function, "insula: given back, but no driver takes it\n");
}

static int bind(struct device_claim *claim)
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

/* Unplugged meanwhile, it is bound to nothing: then there is nothing to reset. */
static int reset(struct device_claim *claim)
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

static void let_go(struct device_claim *claim)
{
	pci_dev_put(claim->function);
	claim->function = NULL;
}

static void give_back(struct device_claim *claim)
{
	lockdep_assert_held(&claims.lock);
	if (reset(claim))
		pci_err(claim->function, "insula: does not reset: its state is the node's\n");
	if (is_ours(claim->function))
		device_release_driver(&claim->function->dev);
	put_back(claim);
	let_go(claim);
	claim->address.flags &= ~INSULA_DEVICE_HELD;
}

static void free_claim(struct device_claim *claim)
{
	kfree(claim->state);
	kfree(claim->override);
	kfree(claim);
}

/* From the base; the node begins with a device that has forgotten it. */
static int take(struct device_claim *claim, struct file *memory)
{
	int err;

	lockdep_assert_held(&claims.lock);
	claim->memory = memory;
	claim->function = pci_get_domain_bus_and_slot(claim->address.segment,
						      claim->address.bus,
						      claim->address.function);
	if (!claim->function)
		return -ENODEV;
	err = check(claim->function);
	if (!err)
		err = remember(claim);
	if (err) {
		let_go(claim);
		return err;
	}
	err = bind(claim);
	if (err) {
		put_back(claim);
		let_go(claim);
		return err;
	}
	err = reset(claim);
	if (err) {
		give_back(claim);
		return err == -ENOTTY ? -EOPNOTSUPP : err;
	}
	claim->address.flags = INSULA_DEVICE_HELD;
	if (claim->confinement)
		claim->address.flags |= INSULA_DEVICE_CONFINED;
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
	err = take(claim, memory);
	mutex_unlock(&claims.lock);
	if (err) {
		free_claim(claim);
		return err;
	}
	list_add_tail(&claim->link, devices);
	return 0;
}

static int take_again(struct device_claim *claim, struct file *memory, struct file *shared)
{
	int err = take(claim, memory);

	if (err || !shared)
		return err;
	err = extend(claim, shared, 0);
	if (err)
		give_back(claim);
	return err;
}

int insula_devices_take_again(struct list_head *devices, struct file *memory,
			      struct file *shared)
{
	struct device_claim *claim;
	int err = 0;

	mutex_lock(&claims.lock);
	list_for_each_entry(claim, devices, link) {
		if (!claim->function)
			err = take_again(claim, memory, shared);
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
		reduce(claim, memory, first);
	mutex_unlock(&claims.lock);
}

int insula_devices_extend(struct list_head *devices, struct file *memory, u32 first)
{
	struct device_claim *claim;
	int err = 0;

	mutex_lock(&claims.lock);
	list_for_each_entry(claim, devices, link) {
		err = extend(claim, memory, first);
		if (err)
			break;
	}
	if (err)
		list_for_each_entry_continue_reverse(claim, devices, link)
			reduce(claim, memory, first);
	mutex_unlock(&claims.lock);
	return err;
}

void insula_devices_silence(struct list_head *devices)
{
	struct device_claim *claim;

	list_for_each_entry(claim, devices, link)
		silence(claim);
}

/*
 * In an NMI the lock of PCI's configuration space may be held by whom it has interrupted:
 * then the devices are left as a crash leaves the base's own.
 */
void insula_devices_silence_all(void)
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
		if (reset(claim))
			pci_err(claim->function, "insula: does not reset\n");
	mutex_unlock(&claims.lock);
}

void insula_devices_return(struct list_head *devices)
{
	struct device_claim *claim;

	mutex_lock(&claims.lock);
	list_for_each_entry(claim, devices, link)
		if (claim->function)
			give_back(claim);
	mutex_unlock(&claims.lock);
}

void insula_devices_forget(struct list_head *devices)
{
	struct device_claim *claim, *next;

	list_for_each_entry_safe(claim, next, devices, link) {
		list_del(&claim->link);
		/* A node that cannot be stopped keeps what it has. */
		if (!claim->function)
			free_claim(claim);
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
