// SPDX-License-Identifier: GPL-2.0-only
/*
 * insula.ko: what needs ring 0 to run more kernels beside this one.
 *
 * The protocol with user space is told in abi/include/insula.h. Inside, from the
 * bottom up:
 *
 *	arch/x86	resetting and starting a core (start.c, trampoline.S)
 *	low.c		RAM below 1 MiB, where cores begin
 *	take.c		large pieces of memory from the base, and back
 *	clear.c		clearing it
 *	held.c		pages that somebody still does I/O on
 *	core.c		whose each core is; taking one from the base, and back
 *	pool.c		memory and cores taken ahead of need
 *	chunk.c		what memory objects are made of, from the three above
 *	file.c		files with inodes of their own
 *	memory.c	memory objects: chunks, as a file
 *	device.c	PCI functions that are a node's; taking one from the base, and back
 *	confine.c	keeping their DMA in the node's memory, with an IOMMU
 *	image.c		memory objects under a name
 *	node.c		cores + memory object under a name
 *	node_ioctl.c	what is asked of a node by its descriptors
 *	life.c		its life: created, started, supervised, stopped, created anew
 *	resize.c	more for one that runs, or less
 *	watch.c		seeing a node end
 *	ring.c		sending and receiving, for kernel code
 *	channel.c	ends of channels between kernels
 *	event.c		events of channels as eventfds
 *	desks.c		delegation: where threads of a node's programs and of proxies meet
 *	seat.c		a thread of a proxy at such a desk
 *	space.c		the address spaces of these programs, for their proxies
 *	program_pages.c	which of their pages are mapped here, and who still holds one
 *	lending.c	what is lent to a node: told to it, and taken back in time
 *	lend.c		lenders: processes whose memory a node uses for a while
 *	borrow.c	the same in a node: what was lent to it, and mapping it
 *	inside.c	the module in a node, where it gives the other ends
 *	inside_resize.c	and brings online and offline what the base gives and wants
 *	base.c		the base's own reboot, suspend and panic
 *	main.c		the device
 *
 * Policy is nowhere here: which cores, which memory, what is put into it and
 * where it is entered are said by the caller, who must be privileged. A node
 * that is running has the hardware to itself; nothing here confines it.
 *
 * In a Linux node the same module has another role: of all this, only the channels and
 * what inside*.c do with them are in use.
 *
 * Locks. Whoever has one takes only such as stand below it:
 *
 *	node->lock				what becomes of a node
 *	lender->calls, space->release		one call of a descriptor at a time
 *	  mmap_lock				of any process, by a fault or by a copy
 *	    cores.lock				and then those of the base's hotplug
 *	    claims.lock				and then the lock of a PCI function,
 *	      claims.bound_lock			which our driver's remove() is called with
 *	    desks->lock
 *	      desks->users_lock
 *	        space->releasing
 *	          space->walking		read by faults
 *	    memory->growing			of two: first of what grows by the other
 *	      memory->mapping			read by faults; of two: by address
 *	      pool.lock, low.lock
 *	      taking (take.c)			one alloc_contig_range() at a time
 *	    area->mapping			read by faults
 *	    registry.lock			nodes' and images'
 *	    channel->lock
 *	      lending->lock			nothing is allocated with it
 *	        start.lock			nothing here either
 *	bus->lock, borrowing.lock		in a node: nothing of all this, but channel->lock
 *	spinlocks				at the very end; each says what interrupts take it
 *
 * Faults come with mmap_lock, so with a lock that they read nobody touches user memory, or
 * takes mmap_lock in any other way. Whoever allocates memory may have to reclaim some, and come
 * by way of lend.c's invalidate() to wait for lending->lock: nothing is allocated with that, and
 * no lock is taken with which anybody allocates. Lockdep is told so by insula_lending_create().
 *
 * When the base goes down its nodes are found by the registry, whose lock comes after theirs:
 * so insula_nodes_base_down() only tries to lock them.
 *
 * What another kernel does may take for ever. So waits for it have a limit, or end with a
 * signal, and hold none of these locks but three: a base that takes back what it has lent does
 * so for whoever changes a mapping, who holds what he needs for that (lending.c); a page of a
 * program that is asked for by who cannot let go of mmap_lock is waited for with it, for two
 * seconds (space_pages.c); the requests to the bus of virtio devices follow one another
 * (virtio/bus.c). User memory may be such a page of a program: hence no copy with a lock.
 */
#include "insula_module.h"

#include <linux/capability.h>
#include <linux/cc_platform.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include <asm/apic.h>
#include <asm/tsc.h>

#include "arch/x86/doorbell.h"
#include "arch/x86/start.h"
#include "base.h"
#include "borrow.h"
#include "channel.h"
#include "chunk.h"
#include "clear.h"
#include "core.h"
#include "device.h"
#include "held.h"
#include "image.h"
#include "inside.h"
#include "life.h"
#include "low.h"
#include "memory.h"
#include "node.h"
#include "pool.h"
#include "space.h"
#include "watch.h"

/* Whether we are the module of a node, not of a base. */
static bool in_node __ro_after_init;

/* A control descriptor: whether its holder speaks our revision. */
struct control {
	bool agreed;
};

static int hello(struct control *control, void __user *argument)
{
	struct insula_hello theirs, ours = {
		.magic = INSULA_MAGIC,
		.revision = INSULA_REVISION,
	};

	if (copy_from_user(&theirs, argument, sizeof(theirs)))
		return -EFAULT;
	if (copy_to_user(argument, &ours, sizeof(ours)))
		return -EFAULT;
	if (theirs.magic != ours.magic || theirs.revision != ours.revision || theirs.reserved)
		return -EPROTO;
	WRITE_ONCE(control->agreed, true);
	return 0;
}

static int machine(void __user *argument)
{
	struct insula_machine machine;
	int err;

	if (copy_from_user(&machine, argument, sizeof(machine)))
		return -EFAULT;
	machine.flags = x2apic_mode ? INSULA_MACHINE_X2APIC : 0;
	machine.tsc_khz = tsc_khz;
	machine.trampoline = insula_start_trampoline();
	insula_low_count(&machine.low_total, &machine.low_free);
	insula_pool_count(&machine.pool_total, &machine.pool_free);
	machine.taken = insula_chunks_taken();
	machine.withheld = insula_withheld();
	err = insula_cores_list(machine.cpus, machine.cpus_capacity, &machine.cpus_count);
	if (err)
		return err;
	return copy_to_user(argument, &machine, sizeof(machine)) ? -EFAULT : 0;
}

static int pool_reserve(void __user *argument)
{
	struct insula_pool pool;
	u32 *cpus;
	int err;

	if (copy_from_user(&pool, argument, sizeof(pool)))
		return -EFAULT;
	if (pool.reserved || pool.cpus_count > INSULA_NODE_CPUS_MAX)
		return -EINVAL;
	if (!pool.cpus_count && !pool.memory.size)
		return -EINVAL;
	if (pool.memory.size) {
		err = insula_request_check(&pool.memory);
		if (err)
			return err;
		/* What lies below 1 MiB costs nothing to take and is scarce. */
		if (pool.memory.max_phys && pool.memory.max_phys <= INSULA_LOW_LIMIT)
			return -EINVAL;
	}
	cpus = memdup_user(u64_to_user_ptr(pool.cpus), pool.cpus_count * sizeof(*cpus));
	if (IS_ERR(cpus))
		return PTR_ERR(cpus);
	err = insula_pool_reserve(&pool, cpus);
	kfree(cpus);
	return err;
}

static long dispatch(unsigned int command, void __user *argument)
{
	switch (command) {
	case INSULA_MACHINE:
		return machine(argument);
	case INSULA_POOL_RESERVE:
		return pool_reserve(argument);
	case INSULA_POOL_RELEASE:
		return insula_pool_release();
	case INSULA_MEMORY_CREATE:
		return insula_memory_create();
	case INSULA_IMAGE_ADD:
		return insula_image_add(argument);
	case INSULA_IMAGE_OPEN:
		return insula_image_open(argument);
	case INSULA_IMAGE_REPLACE:
		return insula_image_replace(argument);
	case INSULA_IMAGE_REMOVE:
		return insula_image_remove(argument);
	case INSULA_IMAGE_LIST:
		return insula_image_list(argument);
	case INSULA_NODE_CREATE:
		return insula_node_create(argument);
	case INSULA_NODE_OPEN:
		return insula_node_open(argument);
	case INSULA_NODE_LIST:
		return insula_node_list(argument);
	default:
		return -ENOTTY;
	}
}

/* In a node there is nothing to take: only channels. */
static long dispatch_inside(unsigned int command, void __user *argument)
{
	switch (command) {
	case INSULA_CHANNEL_OPEN:
		return insula_inside_open(argument);
	case INSULA_BORROW:
		return insula_borrow(argument);
	default:
		return -ENOTTY;
	}
}

static long control_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct control *control = file->private_data;

	if (command == INSULA_HELLO)
		return hello(control, (void __user *)argument);
	if (!READ_ONCE(control->agreed))
		return -EPROTO;
	if (in_node)
		return dispatch_inside(command, (void __user *)argument);
	return dispatch(command, (void __user *)argument);
}

static int control_open(struct inode *inode, struct file *file)
{
	struct control *control;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	control = kzalloc(sizeof(*control), GFP_KERNEL);
	if (!control)
		return -ENOMEM;
	file->private_data = control;
	return 0;
}

static int control_release(struct inode *inode, struct file *file)
{
	kfree(file->private_data);
	return 0;
}

static const struct file_operations control_fops = {
	.owner = THIS_MODULE,
	.open = control_open,
	.unlocked_ioctl = control_ioctl,
	.release = control_release,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "insula",
	.fops = &control_fops,
	.mode = 0600,
};

/* All that makes this the base of nodes. */
static int __init base_init(void)
{
	int err;

	if (cc_platform_has(CC_ATTR_MEM_ENCRYPT)) {
		pr_err("the base encrypts its memory: a node would find it as it is stored\n");
		return -EOPNOTSUPP;
	}
	err = insula_low_init();
	if (err)
		return err;
	err = insula_clear_init();
	if (err)
		return err;
	err = insula_start_init();
	if (err)
		goto stop_clear;
	err = insula_cores_init();
	if (err)
		goto stop_start;
	err = insula_devices_init();
	if (err)
		goto stop_cores;
	insula_watch_init();
	err = insula_life_init();
	if (err)
		goto stop_devices;
	err = insula_spaces_init();
	if (err)
		goto stop_life;
	err = insula_base_init();
	if (err)
		goto stop_spaces;
	return 0;

stop_spaces:
	insula_spaces_exit();
stop_life:
	insula_life_exit();
stop_devices:
	insula_devices_exit();
stop_cores:
	insula_cores_exit();
stop_start:
	insula_start_exit();
stop_clear:
	insula_clear_exit();
	return err;
}

/* Images and nodes hold the module: here there are none, only perhaps a pool. */
static void base_exit(void)
{
	insula_pool_release();
	insula_withheld_exit();
	insula_base_exit();
	insula_watch_exit();
	insula_spaces_exit();
	insula_life_exit();
	insula_devices_exit();
	insula_cores_exit();
	insula_start_exit();
	insula_clear_exit();
	insula_low_exit();
}

static void exit_role(void)
{
	if (in_node)
		insula_inside_exit();
	else
		base_exit();
}

static int __init insula_init(void)
{
	int err = insula_doorbells_init();

	if (err)
		return err;
	err = insula_channels_init();
	if (err)
		goto stop_doorbells;
	in_node = insula_inside_found();
	err = in_node ? insula_inside_init() : base_init();
	if (err)
		goto stop_channels;
	err = misc_register(&device);
	if (!err)
		return 0;
	exit_role();
stop_channels:
	insula_channels_exit();
stop_doorbells:
	insula_doorbells_exit();
	return err;
}

static void __exit insula_exit(void)
{
	misc_deregister(&device);
	exit_role();
	insula_channels_exit();
	insula_doorbells_exit();
}

module_init(insula_init);
module_exit(insula_exit);

MODULE_DESCRIPTION("Many kernels, one machine");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
MODULE_AUTHOR("The Insula authors");
