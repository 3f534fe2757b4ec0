// SPDX-License-Identifier: GPL-2.0-only
/*
 * ioctls of a node's descriptor. Arguments are copied in before the node is locked, and results
 * out afterwards: the caller's memory may be this node's, whose remote faults may take long.
 */
#include "node/node_ioctl.h"

#include <linux/err.h>
#include <linux/file.h>
#include <linux/ioctl.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "arch/x86/processor.h"
#include "channel/area.h"
#include "channel/endpoint_file.h"
#include "cpu/core.h"
#include "delegation/mirror.h"
#include "delegation/slots.h"
#include "device/device.h"
#include "grant/grant.h"
#include "mem/memory.h"
#include "mem/shown.h"
#include "node/description.h"
#include "node/interrupt.h"
#include "node/node.h"
#include "node/node_areas.h"
#include "node/node_state.h"
#include "node/pause.h"
#include "node/resize.h"
#include "node/shared.h"

/* Largest possible number of PCI functions in a segment. */
#define DEVICES_TOLD_MAX	65536

/* Argument of a call that runs entirely under the lock. */
union argument {
	struct insula_node_start start;
	struct insula_node_stop stop;
	struct insula_node_interrupt interrupt;
	struct insula_node_supervise supervise;
	struct insula_node_share share;
	struct insula_node_confine confine;
	struct insula_channels channels;
	struct insula_delegation delegation;
	struct insula_device device;
	struct insula_name name;
};

static int node_ioctl_start(struct insula_node *node, struct file *by,
			    const union argument *argument)
{
	u64 tsc = insula_processor_tsc();

	if (node->state == INSULA_CREATING && node->owner != by)
		return -EPERM;
	node->start_tsc = tsc;
	return insula_node_start(node, &argument->start);
}

static int node_ioctl_stop(struct insula_node *node, struct file *by,
			   const union argument *argument)
{
	if (argument->stop.reserved)
		return -EINVAL;
	switch (argument->stop.reason) {
	case INSULA_REASON_STOPPED:
	case INSULA_REASON_KILLED:
	case INSULA_REASON_CRASHED:
	case INSULA_REASON_HALTED:
	case INSULA_REASON_HUNG:
	case INSULA_REASON_DEVICE_LOST:
	case INSULA_REASON_FINDING:
		return insula_node_stop(node, argument->stop.reason);
	default:
		return -EINVAL;
	}
}

static int node_ioctl_remove(struct insula_node *node, struct file *by,
			     const union argument *argument)
{
	return insula_node_remove(node);
}

static int node_ioctl_interrupt(struct insula_node *node, struct file *by,
				const union argument *argument)
{
	return insula_node_interrupt(node, argument->interrupt.index, argument->interrupt.vector);
}

static int node_ioctl_supervise(struct insula_node *node, struct file *by,
				const union argument *argument)
{
	return insula_node_supervise(node, by, &argument->supervise);
}

static int node_ioctl_retire(struct insula_node *node, struct file *by,
			     const union argument *argument)
{
	insula_node_retire(node);
	return 0;
}

static int node_ioctl_share(struct insula_node *node, struct file *by,
			    const union argument *argument)
{
	return insula_node_share(node, by, &argument->share);
}

static int node_ioctl_shared(struct insula_node *node, struct file *by,
			     const union argument *argument)
{
	return insula_node_shared(node);
}

static int node_ioctl_confine(struct insula_node *node, struct file *by,
			      const union argument *argument)
{
	return insula_node_confine(node, by, &argument->confine);
}

static int node_ioctl_monitor(struct insula_node *node, struct file *by,
			      const union argument *argument)
{
	return insula_node_monitor(node);
}

static int node_ioctl_pause(struct insula_node *node, struct file *by,
			    const union argument *argument)
{
	return insula_node_pause(node);
}

static int node_ioctl_resume(struct insula_node *node, struct file *by,
			     const union argument *argument)
{
	return insula_node_resume(node);
}

static int node_ioctl_rename(struct insula_node *node, struct file *by,
			     const union argument *argument)
{
	return insula_node_rename(node, &argument->name);
}

static int node_ioctl_exchange_names(struct insula_node *node, struct file *by,
				     const union argument *argument)
{
	return insula_node_exchange_names(node, &argument->name);
}

static int node_ioctl_memory(struct insula_node *node, struct file *by,
			     const union argument *argument)
{
	return insula_memory_install(node->memory);
}

static int node_ioctl_channels(struct insula_node *node, struct file *by,
			       const union argument *argument)
{
	return insula_node_lay_out_channels(node, &argument->channels);
}

static int node_ioctl_delegation(struct insula_node *node, struct file *by,
				 const union argument *argument)
{
	return insula_node_lay_out_delegation(node, &argument->delegation);
}

static int node_ioctl_device_add(struct insula_node *node, struct file *by,
				 const union argument *argument)
{
	if (node->state != INSULA_CREATING)
		return -EBUSY;
	if (node->owner != by)
		return -EPERM;
	/* The monitor's memory describes the devices. A copy's has no frames at its addresses. */
	if (insula_node_confined(node) || insula_memory_is_shown(node->memory))
		return -EOPNOTSUPP;
	return insula_device_claim(&node->devices, &argument->device, node->memory);
}

static const struct call {
	unsigned int command;
	int (*handle)(struct insula_node *node, struct file *by, const union argument *argument);
} calls[] = {
	{ INSULA_NODE_START, node_ioctl_start },
	{ INSULA_NODE_STOP, node_ioctl_stop },
	{ INSULA_NODE_REMOVE, node_ioctl_remove },
	{ INSULA_NODE_INTERRUPT, node_ioctl_interrupt },
	{ INSULA_NODE_SUPERVISE, node_ioctl_supervise },
	{ INSULA_NODE_RETIRE, node_ioctl_retire },
	{ INSULA_NODE_SHARE, node_ioctl_share },
	{ INSULA_NODE_SHARED, node_ioctl_shared },
	{ INSULA_NODE_CONFINE, node_ioctl_confine },
	{ INSULA_NODE_MONITOR, node_ioctl_monitor },
	{ INSULA_NODE_PAUSE, node_ioctl_pause },
	{ INSULA_NODE_RESUME, node_ioctl_resume },
	{ INSULA_NODE_RENAME, node_ioctl_rename },
	{ INSULA_NODE_EXCHANGE_NAMES, node_ioctl_exchange_names },
	{ INSULA_NODE_MEMORY, node_ioctl_memory },
	{ INSULA_NODE_CHANNELS, node_ioctl_channels },
	{ INSULA_NODE_DELEGATION, node_ioctl_delegation },
	{ INSULA_NODE_DEVICE_ADD, node_ioctl_device_add },
};

static const struct call *node_ioctl_find(unsigned int command)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(calls); i++)
		if (calls[i].command == command)
			return &calls[i];
	return NULL;
}

static int node_ioctl_locked(struct insula_node *node, struct file *by, unsigned int command,
			     void __user *from)
{
	const struct call *call = node_ioctl_find(command);
	union argument argument;
	int answer;

	if (!call)
		return -ENOTTY;
	if (WARN_ON_ONCE(_IOC_SIZE(command) > sizeof(argument)))
		return -ENOTTY;
	if (copy_from_user(&argument, from, _IOC_SIZE(command)))
		return -EFAULT;
	answer = insula_node_lock(node);
	if (answer)
		return answer;
	answer = call->handle(node, by, &argument);
	mutex_unlock(&node->lock);
	return answer;
}

static u32 node_ioctl_flags(const struct insula_node *node)
{
	u32 flags = 0;

	if (node->supervisor)
		flags |= INSULA_NODE_SUPERVISED;
	if (node->state == INSULA_STOPPED && node->has_cores)
		flags |= INSULA_NODE_CPUS_KEPT;
	if (node->unresponsive && node->state == INSULA_RUNNING)
		flags |= INSULA_NODE_UNRESPONSIVE;
	if (node->retired)
		flags |= INSULA_NODE_RETIRED;
	if (insula_node_confined(node))
		flags |= INSULA_NODE_CONFINED;
	if (node->paused)
		flags |= INSULA_NODE_PAUSED;
	return flags;
}

static void node_ioctl_fill_info(struct insula_node *node, struct insula_node_info *info)
{
	insula_node_copy_name(node, info->name);
	info->id = node->id;
	info->state = node->state;
	info->reason = node->reason;
	info->cpus_count = node->cpus_count;
	info->flags = node_ioctl_flags(node);
	info->memory_size = insula_memory_size(node->memory);
	info->starts = node->starts;
	info->started_ns = node->started_ns;
	info->ended_ns = node->ended_ns;
	info->start_tsc = node->start_tsc;
	info->entry_tsc = node->entry_tsc;
	info->power_off = node->start.power_off;
	info->reset = node->start.reset;
	info->monitor = insula_node_monitor_address(node);
}

static void node_ioctl_list_cpus(const struct insula_node *node, struct insula_cpu *list, u32 room)
{
	u32 i;

	for (i = 0; i < min(room, node->cpus_count); i++)
		list[i] = (struct insula_cpu) {
			.cpu = node->cpus[i],
			.apic_id = insula_processor_apic_id(node->cpus[i]),
			.owner = node->core_share ? INSULA_CPU_SHARED : INSULA_CPU_NODE,
			.node = node->id,
		};
}

/* Read both under one lock, for a consistent result. */
static int node_ioctl_read_info(struct insula_node *node, struct insula_node_info *info,
				struct insula_cpu *cpus, u32 room)
{
	int err = insula_node_lock(node);

	if (err)
		return err;
	node_ioctl_fill_info(node, info);
	node_ioctl_list_cpus(node, cpus, room);
	mutex_unlock(&node->lock);
	return 0;
}

static int node_ioctl_info(struct insula_node *node, void __user *argument)
{
	struct insula_node_info info;
	struct insula_cpu *cpus;
	u32 room;
	int err;

	if (copy_from_user(&info, argument, sizeof(info)))
		return -EFAULT;
	room = min_t(u32, info.cpus_capacity, INSULA_NODE_CPUS_MAX);
	cpus = kvcalloc(room, sizeof(*cpus), GFP_KERNEL);
	if (!cpus && room)
		return -ENOMEM;
	err = node_ioctl_read_info(node, &info, cpus, room);
	if (!err && (copy_to_user(u64_to_user_ptr(info.cpus), cpus,
				  min(room, info.cpus_count) * sizeof(*cpus)) ||
		     copy_to_user(argument, &info, sizeof(info))))
		err = -EFAULT;
	kvfree(cpus);
	return err;
}

static int node_ioctl_devices(struct insula_node *node, void __user *argument)
{
	struct insula_devices request;
	struct insula_device *devices;
	u32 room;
	int err;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	room = min_t(u32, request.capacity, DEVICES_TOLD_MAX);
	devices = kvcalloc(room, sizeof(*devices), GFP_KERNEL);
	if (!devices && room)
		return -ENOMEM;
	err = insula_node_lock(node);
	if (!err) {
		request.count = insula_devices_list(&node->devices, devices, room);
		mutex_unlock(&node->lock);
		if (copy_to_user(u64_to_user_ptr(request.devices), devices,
				 min(room, request.count) * sizeof(*devices)) ||
		    copy_to_user(argument, &request, sizeof(request)))
			err = -EFAULT;
	}
	kvfree(devices);
	return err;
}

static int node_ioctl_description(struct insula_node *node, void __user *argument)
{
	struct insula_description_data *description;
	int err = insula_node_lock(node);

	if (err)
		return err;
	description = insula_description_get(node->description);
	mutex_unlock(&node->lock);
	err = insula_description_read(description, argument);
	insula_description_put(description);
	return err;
}

static int node_ioctl_recreate(struct insula_node *node, struct file *by, void __user *argument)
{
	struct insula_description_data *description;
	struct insula_node_recreate request;
	int err;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (request.flags & ~INSULA_RECREATE_UNLESS_RETIRED)
		return -EINVAL;
	description = insula_description_copy(request.description, request.description_size);
	if (IS_ERR(description))
		return PTR_ERR(description);
	err = insula_node_lock(node);
	if (!err) {
		err = insula_node_recreate(node, by, request.flags, description);
		mutex_unlock(&node->lock);
	}
	if (err)
		insula_description_put(description);
	return err;
}

/* Opening an endpoint may wait for the node: without the lock. */
static int node_ioctl_open_channel(struct insula_node *node, void __user *argument)
{
	struct insula_area *area;
	int answer = insula_node_lock(node);

	if (answer)
		return answer;
	area = node->area;
	if (area)
		insula_area_get(area);
	mutex_unlock(&node->lock);
	answer = area ? insula_endpoint_file_open(area, argument) : -ENOENT;
	insula_area_put(area);
	return answer;
}

static int node_ioctl_create_mirror(struct insula_node *node, void __user *argument)
{
	struct insula_slots *slots = NULL;
	int answer = insula_node_lock(node);

	if (answer)
		return answer;
	if (!node->slots) {
		answer = -EOPNOTSUPP;
	} else if (node->state != INSULA_RUNNING) {
		answer = -EPIPE;
	} else {
		slots = node->slots;
		insula_slots_get(slots);
	}
	mutex_unlock(&node->lock);
	if (!slots)
		return answer;
	answer = insula_mirror_create(slots, argument);
	insula_slots_put(slots);
	return answer;
}

long insula_node_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct insula_node *node = file->private_data;
	void __user *user = (void __user *)argument;

	switch (command) {
	case INSULA_NODE_INFO:
		return node_ioctl_info(node, user);
	case INSULA_NODE_DEVICES:
		return node_ioctl_devices(node, user);
	case INSULA_DESCRIPTION:
		return node_ioctl_description(node, user);
	case INSULA_NODE_RECREATE:
		return node_ioctl_recreate(node, file, user);
	case INSULA_NODE_GROW:
		return insula_node_grow(node, user);
	case INSULA_NODE_SHRINK:
		return insula_node_shrink(node, user);
	case INSULA_CHANNEL_OPEN:
		return node_ioctl_open_channel(node, user);
	case INSULA_MIRROR_CREATE:
		return node_ioctl_create_mirror(node, user);
	case INSULA_NODE_GRANT_TABLE:
		return insula_grant_table_create(node, user);
	default:
		return node_ioctl_locked(node, file, command, user);
	}
}
