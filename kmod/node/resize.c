// SPDX-License-Identifier: GPL-2.0-only
/*
 * Growing and shrinking of a running node: ownership of its cores and memory. Bringing them
 * online and offline is up to the node's kernel (guest_hotplug.c) and the caller.
 */
#include "arch/x86/processor.h"
#include "node/resize.h"

#include <linux/err.h>
#include <linux/file.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "arch/x86/doorbell.h"
#include "channel/area.h"
#include "cpu/core.h"
#include "device/device.h"
#include "grant/grant_channel.h"
#include "mem/memory.h"
#include "mem/shown.h"

struct insula_ringable *insula_ringable_new(const u32 *cpus, u32 count)
{
	struct insula_ringable *ringable;
	u32 i;

	ringable = kmalloc(struct_size(ringable, apic_ids, 2 * count), GFP_KERNEL);
	if (!ringable)
		return NULL;
	ringable->count = count;
	for (i = 0; i < count; i++)
		ringable->apic_ids[i] = insula_processor_apic_id(cpus[i]);
	memcpy(&ringable->apic_ids[count], ringable->apic_ids, count * sizeof(u32));
	return ringable;
}

/* The new set of a node's cores, allocated before anything is taken. */
struct change {
	u32 *cpus;
	u32 count;
	struct insula_ringable *ringable;
};

static void resize_discard(struct change *change)
{
	kfree(change->ringable);
	kfree(change->cpus);
}

static int resize_prepare(struct change *change)
{
	change->ringable = insula_ringable_new(change->cpus, change->count);
	if (change->ringable)
		return 0;
	kfree(change->cpus);
	return -ENOMEM;
}

/* From here on a reset of the node's cores covers the new set. */
static void resize_commit(struct insula_node *node, struct change *change)
{
	lockdep_assert_held(&node->lock);
	insula_exit_poll_set_cpus(&node->exit_poll, change->cpus, change->count);
	kfree(node->cpus);
	node->cpus = change->cpus;
	node->cpus_count = change->count;
	/* A missed revocation resets exactly the cores of the area: change them under its lock. */
	if (node->grants)
		insula_grant_channel_lock(node->grants);
	if (node->area)
		insula_area_set_ringable(node->area, change->ringable);
	else
		kfree(change->ringable);
	if (node->grants)
		insula_grant_channel_unlock(node->grants);
}

/* A delegation area's set of ringable cores is fixed. */
static int resize_allowed(const struct insula_node *node)
{
	if (node->state != INSULA_RUNNING)
		return -EALREADY;
	return node->slots || insula_memory_is_shown(node->memory) ? -EOPNOTSUPP : 0;
}

static int resize_prepare_grow(struct change *change, const struct insula_node *node,
			       const u32 *cpus,
			       u32 count)
{
	change->count = node->cpus_count + count;
	if (change->count > INSULA_NODE_CPUS_MAX || !insula_cores_are_takable(cpus, count))
		return -EINVAL;
	change->cpus = kmalloc_array(change->count, sizeof(*cpus), GFP_KERNEL);
	if (!change->cpus)
		return -ENOMEM;
	memcpy(change->cpus, node->cpus, node->cpus_count * sizeof(*cpus));
	memcpy(change->cpus + node->cpus_count, cpus, count * sizeof(*cpus));
	return resize_prepare(change);
}

/* Give memory to a node whose monitor lets it access that. */
static int resize_absorb(struct insula_node *node, struct file *memory)
{
	int err = insula_node_monitor_add_memory(node, memory);

	if (err)
		return err;
	err = insula_memory_absorb(node->memory, memory);
	if (err)
		insula_node_monitor_remove_memory(node, memory, 0);
	return err;
}

static int resize_take_memory(struct insula_node *node, struct file *memory)
{
	int err = insula_devices_extend(&node->devices, memory, 0);

	if (err)
		return err;
	err = resize_absorb(node, memory);
	if (err)
		insula_devices_reduce(&node->devices, memory, 0);
	return err;
}

static int resize_take_cores(struct insula_node *node, const u32 *cpus, u32 count)
{
	int err = insula_cores_take(cpus, count, node->id);

	if (err)
		return err;
	err = insula_node_monitor_add_cores(node, cpus, count);
	if (err)
		insula_cores_give(cpus, count);
	return err;
}

static int resize_take(struct insula_node *node, const u32 *cpus, u32 cpus_count,
		       struct file *memory)
{
	int err = resize_take_cores(node, cpus, cpus_count);

	if (err)
		return err;
	err = memory ? resize_take_memory(node, memory) : 0;
	/* Without a monitor they are still parked, and no kernel knows of them. */
	if (err && !insula_node_monitor_park_cores(node, cpus, cpus_count))
		insula_cores_give(cpus, cpus_count);
	return err;
}

/* If the node has ended but is not reaped yet, the reaping includes what is added here. */
static int resize_grow(struct insula_node *node, const u32 *cpus, u32 cpus_count,
		       struct file *memory)
{
	struct change change;
	int err = resize_allowed(node);

	if (err)
		return err;
	err = resize_prepare_grow(&change, node, cpus, cpus_count);
	if (err)
		return err;
	err = resize_take(node, cpus, cpus_count, memory);
	if (err)
		resize_discard(&change);
	else
		resize_commit(node, &change);
	return err;
}

static bool resize_listed(const u32 *cpus, u32 count, u32 cpu)
{
	while (count--)
		if (cpus[count] == cpu)
			return true;
	return false;
}

/* Whether all belong to the node, none twice, and none is its first. */
static bool resize_removable(const struct insula_node *node, const u32 *cpus, u32 count)
{
	u32 i;

	for (i = 0; i < count; i++)
		if (!resize_listed(node->cpus + 1, node->cpus_count - 1, cpus[i]) ||
		    resize_listed(cpus, i, cpus[i]))
			return false;
	return true;
}

static int resize_prepare_shrink(struct change *change, const struct insula_node *node,
				 const u32 *cpus,
				 u32 count)
{
	u32 i;

	if (!resize_removable(node, cpus, count))
		return -EINVAL;
	change->cpus = kmalloc_array(node->cpus_count, sizeof(*cpus), GFP_KERNEL);
	if (!change->cpus)
		return -ENOMEM;
	change->count = 0;
	for (i = 0; i < node->cpus_count; i++)
		if (!resize_listed(cpus, count, node->cpus[i]))
			change->cpus[change->count++] = node->cpus[i];
	return resize_prepare(change);
}

static int resize_shrink(struct insula_node *node, const u32 *cpus, u32 cpus_count, u32 chunks)
{
	u32 has = insula_memory_count(node->memory);
	struct change change;
	int err = resize_allowed(node);

	if (err)
		return err;
	if (chunks > has - node->chunks_started)
		return -EINVAL;
	err = resize_prepare_shrink(&change, node, cpus, cpus_count);
	if (err)
		return err;
	/* A core that cannot be stopped stays the node's, with all of its memory. */
	err = insula_node_monitor_park_cores(node, cpus, cpus_count);
	if (err) {
		resize_discard(&change);
		return err;
	}
	resize_commit(node, &change);
	insula_cores_give(cpus, cpus_count);
	if (chunks)
		err = insula_node_monitor_remove_memory(node, node->memory, has - chunks);
	if (err)
		return err;
	insula_devices_reduce(&node->devices, node->memory, has - chunks);
	insula_memory_drop(node->memory, chunks);
	return 0;
}

/* Copy core numbers from user space, to be freed by the caller; NULL if there are none. */
static u32 *resize_copy_cpus(u64 from, u32 count)
{
	if (count > INSULA_NODE_CPUS_MAX)
		return ERR_PTR(-EINVAL);
	return count ? memdup_user(u64_to_user_ptr(from), count * sizeof(u32)) : NULL;
}

/* Get and claim the memory object of a descriptor; NULL for -1. */
static struct file *resize_claim_memory(int fd)
{
	struct file *memory;
	int err;

	if (fd == -1)
		return NULL;
	memory = insula_memory_get(fd);
	if (IS_ERR(memory))
		return memory;
	err = insula_memory_claim(memory);
	if (!err)
		return memory;
	fput(memory);
	return ERR_PTR(err);
}

int insula_node_grow(struct insula_node *node, void __user *argument)
{
	struct insula_node_grow request;
	struct file *memory;
	u32 *cpus;
	int err;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	cpus = resize_copy_cpus(request.cpus, request.cpus_count);
	if (IS_ERR(cpus))
		return PTR_ERR(cpus);
	memory = resize_claim_memory(request.memory);
	if (IS_ERR(memory)) {
		kfree(cpus);
		return PTR_ERR(memory);
	}
	err = insula_node_lock(node);
	if (!err) {
		err = resize_grow(node, cpus, request.cpus_count, memory);
		mutex_unlock(&node->lock);
	}
	if (err && memory)
		insula_memory_unclaim(memory);
	if (memory)
		fput(memory);
	kfree(cpus);
	return err;
}

int insula_node_shrink(struct insula_node *node, void __user *argument)
{
	struct insula_node_shrink request;
	u32 *cpus;
	int err;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	cpus = resize_copy_cpus(request.cpus, request.cpus_count);
	if (IS_ERR(cpus))
		return PTR_ERR(cpus);
	err = insula_node_lock(node);
	if (!err) {
		err = resize_shrink(node, cpus, request.cpus_count, request.chunks);
		mutex_unlock(&node->lock);
	}
	kfree(cpus);
	return err;
}
