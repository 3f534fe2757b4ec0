// SPDX-License-Identifier: GPL-2.0-only
/*
 * insula.ko: what needs ring 0 to run more kernels beside this one.
 *
 * The protocol with user space is described in abi/include/insula.h. Each folder includes only
 * from those above it in this list, from its own, and where a layer above registers itself:
 *
 * In the base and in nodes:
 *	arch/x86/	processor.c: what the rest asks of the processor; start.c, trampoline.S:
 *			resetting, parking and starting of cores; shared_core.c, core_switch.c:
 *			cores shared with a node; doorbell.c; symbols.c,
 *			page_table.c: finding things in the base and in a node
 *	channel/	ring.c: rings, for kernel code; session.c: the words of both endpoints;
 *			area.c: all endpoints of a node's channels; endpoint.c: an endpoint, and
 *			its use by the kernel itself; endpoint_file.c: endpoints as descriptors;
 *			eventfd.c: their events bound to eventfds
 *
 * In the base:
 *	mem/		request.c: requests for memory; lowmem.c: RAM below 1 MiB, where cores
 *			start; contig_alloc.c: large contiguous memory of the base; pool.c:
 *			memory and cores taken ahead of need; chunk.c: chunks from lowmem, pool
 *			or base, and back; clear.c; quarantine.c: pages still pinned by I/O;
 *			memory.c: memory objects, lists of chunks as files; memory_map.c,
 *			memory_copy.c: mapping them into processes, copying between them; image.c:
 *			memory objects under a name; base_memory.c: the base's own, for watchers
 *	cpu/		core.c: ownership of cores, taking them from the base
 *	device/		device.c: PCI functions assigned to nodes; driver.c: the driver that they
 *			are bound to meanwhile; iommu_domain.c
 *	node/		node.c: cores and a memory object under a name; node_ioctl.c;
 *			node_state.c: created, started, supervised, stopped, recreated; resize.c:
 *			growing and shrinking while it runs; monitor.c, monitor_cores.c: monitors
 *			of confined nodes, and asking their cores; nested_table.c: what such a node
 *			may access; frame_record.c: frames of the base that a node uses;
 *			exit_poll.c: polling for its end;
 *			base.c: reboot, suspend and panic of the base
 *	delegation/	slots.c: the delegation area and its processes; slots_page.c: its pages
 *			and syscall slots; slot.c: a proxy's thread waiting at a slot; mirror.c:
 *			mm mirrors, programs' address spaces for their proxies; mirror_fault.c,
 *			mirror_invalidate.c: page faults in mirrors, and unmapping;
 *			mirror_slots.c: syscall slots as proxies map them;
 *			frame_tracker.c: frames mapped in mirrors, and which are pinned;
 *			base_frames.c: the base's frames in programs' page tables; clock.c
 *	grant/		grant_channel.c: granting memory to a node, and revoking it in time;
 *			grant.c: grant tables, memory of processes granted to a node;
 *			grant_window.c: following the mappings of that memory
 *
 * In a Linux node:
 *	guest/		guest.c: its endpoints of channels; guest_hotplug.c: onlining and
 *			offlining of cores and memory; grant_import.c: mapping granted memory
 *	virtio/		virtio devices over channels, a module of their own: bus.c; device.c;
 *			vqueue.c
 *
 * Everywhere: compat/, differences between versions of Linux; and this file, the device.
 *
 * There is no policy here: which cores, which memory, its content and the entry address are
 * chosen by the caller, who must be privileged. A running node has its cores to itself; the
 * module does not isolate it.
 *
 * Lock order, outermost first:
 *
 *	node->lock				state of a node
 *	table->call_lock, mirror->invalidate_lock  one ioctl of a descriptor at a time
 *	  mmap_lock				of any process, by a fault or a user copy
 *	    cores.lock				then those of the base's CPU hotplug
 *	    devices_lock			then the device lock of a PCI function,
 *	      bound.lock			under which our driver's remove() is called
 *	    slots->lock
 *	      slots->users_lock
 *	        mirror->tracker_lock
 *	          mirror->walk_lock		read by faults
 *	    memory->growing			of two: the one that grows by the other first
 *	      memory->mapping			read by faults; of two: by address
 *	      pool.lock, lowmem.lock
 *	      contig_mutex			one alloc_contig_range() at a time
 *	    area->mapping			read by faults
 *	    registry.lock			of nodes and of images
 *	    endpoint->lock			of a channel
 *	      grant channel's lock		no allocations under it
 *	        nested table's lock		no allocations under it
 *	        monitor_cores->flushing		no allocations under it; then its lock
 *	          start.lock			no allocations under it
 *	bus->lock, imports.lock			in a node: only endpoint->lock nests inside
 *	spinlocks				innermost; each declares its interrupt use
 *
 * Faults hold mmap_lock, so under a lock that they read nobody accesses user memory, or takes
 * mmap_lock in another way. Memory allocation may enter reclaim, and thereby wait in
 * grant_window_invalidate() for the grant channel's lock: nothing is allocated under that lock, nor
 * under any lock taken inside it. insula_grant_channel_create() teaches lockdep so.
 *
 * When the base goes down, its nodes are found in the registry, whose lock nests inside theirs:
 * so insula_nodes_base_down() only tries to lock them.
 *
 * Another kernel may take forever. So waits for it have a timeout, or end by a signal, and hold
 * none of these locks, with four exceptions: a revocation waits on behalf of the thread that
 * changes a mapping, with that thread's locks held (grant_channel.c); a remote fault that cannot
 * drop mmap_lock waits with it, for two seconds (mirror_fault.c), and a proxy's thread that exits
 * for one (mirror_slots.c); requests to the virtio bus are serialized (virtio/bus.c). User
 * memory may be a page of a program, which needs a remote fault: hence no user copies under a
 * lock.
 */
#include "insula_module.h"

#include <linux/capability.h>
#include <linux/cc_platform.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "arch/x86/doorbell.h"
#include "arch/x86/processor.h"
#include "arch/x86/start.h"
#include "channel/endpoint_file.h"
#include "cpu/core.h"
#include "delegation/mirror.h"
#include "device/device.h"
#include "guest/grant_import.h"
#include "guest/guest.h"
#include "mem/base_memory.h"
#include "mem/chunk.h"
#include "mem/clear.h"
#include "mem/image.h"
#include "mem/lowmem.h"
#include "mem/memory.h"
#include "mem/shown.h"
#include "mem/pool.h"
#include "mem/quarantine.h"
#include "mem/request.h"
#include "node/base.h"
#include "node/exit_poll.h"
#include "node/node.h"
#include "node/node_state.h"

/* Whether this kernel is a node, not a base. */
static bool in_node __ro_after_init;

/* A control descriptor. */
struct control {
	bool agreed;		/* on our revision */
};

static int control_hello(struct control *control, void __user *argument)
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

static int control_machine(void __user *argument)
{
	struct insula_machine machine;
	int err;

	if (copy_from_user(&machine, argument, sizeof(machine)))
		return -EFAULT;
	machine.flags = insula_processor_flags();
	machine.tsc_khz = insula_processor_tsc_khz();
	machine.trampoline = insula_start_trampoline();
	insula_lowmem_count(&machine.lowmem_total, &machine.lowmem_free);
	insula_pool_count(&machine.pool_total, &machine.pool_free);
	machine.allocated = insula_chunks_allocated() + insula_shown_allocated();
	machine.quarantined = insula_quarantine_size();
	err = insula_cores_list(machine.cpus, machine.cpus_capacity, &machine.cpus_count);
	if (err)
		return err;
	return copy_to_user(argument, &machine, sizeof(machine)) ? -EFAULT : 0;
}

static int control_pool_reserve(void __user *argument)
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
		/* Lowmem is fast to allocate, and scarce: not in the pool. */
		if (insula_request_is_lowmem(&pool.memory))
			return -EINVAL;
	}
	cpus = memdup_user(u64_to_user_ptr(pool.cpus), pool.cpus_count * sizeof(*cpus));
	if (IS_ERR(cpus))
		return PTR_ERR(cpus);
	err = insula_pool_reserve(&pool, cpus);
	kfree(cpus);
	return err;
}

static long control_dispatch(unsigned int command, void __user *argument)
{
	switch (command) {
	case INSULA_MACHINE:
		return control_machine(argument);
	case INSULA_POOL_RESERVE:
		return control_pool_reserve(argument);
	case INSULA_POOL_RELEASE:
		return insula_pool_release();
	case INSULA_MEMORY_CREATE:
		return insula_memory_create();
	case INSULA_MEMORY_SHOW:
		return insula_memory_show(argument);
	case INSULA_BASE_MEMORY:
		return insula_base_memory_open();
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

/* In a node: only channels and grants. */
static long control_dispatch_guest(unsigned int command, void __user *argument)
{
	switch (command) {
	case INSULA_CHANNEL_OPEN:
		return insula_guest_open(argument);
	case INSULA_GRANT_IMPORT:
		return insula_grant_import(argument);
	default:
		return -ENOTTY;
	}
}

static long control_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct control *control = file->private_data;

	if (command == INSULA_HELLO)
		return control_hello(control, (void __user *)argument);
	if (!READ_ONCE(control->agreed))
		return -EPROTO;
	if (in_node)
		return control_dispatch_guest(command, (void __user *)argument);
	return control_dispatch(command, (void __user *)argument);
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

/* Initialize the role of a base. */
static int __init main_base_init(void)
{
	int err;

	if (cc_platform_has(CC_ATTR_MEM_ENCRYPT)) {
		pr_err("memory encryption is active: nodes cannot use encrypted memory\n");
		return -EOPNOTSUPP;
	}
	err = insula_lowmem_init();
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
	insula_exit_poll_init();
	err = insula_node_state_init();
	if (err)
		goto stop_devices;
	err = insula_mirrors_init();
	if (err)
		goto stop_node_state;
	err = insula_base_init();
	if (err)
		goto stop_mirrors;
	return 0;

stop_mirrors:
	insula_mirrors_exit();
stop_node_state:
	insula_node_state_exit();
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

/* Images and nodes hold the module: only a pool may be left here. */
static void main_base_exit(void)
{
	insula_pool_release();
	insula_quarantine_exit();
	insula_base_exit();
	insula_exit_poll_exit();
	insula_mirrors_exit();
	insula_node_state_exit();
	insula_devices_exit();
	insula_cores_exit();
	insula_start_exit();
	insula_clear_exit();
	insula_lowmem_exit();
}

static void main_exit_role(void)
{
	if (in_node)
		insula_guest_exit();
	else
		main_base_exit();
}

static int __init insula_init(void)
{
	int err = insula_doorbells_init();

	if (err)
		return err;
	err = insula_endpoint_files_init();
	if (err)
		goto stop_doorbells;
	in_node = insula_guest_found();
	err = in_node ? insula_guest_init() : main_base_init();
	if (err)
		goto stop_channels;
	err = misc_register(&device);
	if (!err)
		return 0;
	main_exit_role();
stop_channels:
	insula_endpoint_files_exit();
stop_doorbells:
	insula_doorbells_exit();
	return err;
}

static void __exit insula_exit(void)
{
	misc_deregister(&device);
	main_exit_role();
	insula_endpoint_files_exit();
	insula_doorbells_exit();
}

module_init(insula_init);
module_exit(insula_exit);

MODULE_DESCRIPTION("Many kernels, one machine");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
MODULE_AUTHOR("The Insula authors");
