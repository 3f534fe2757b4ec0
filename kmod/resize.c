// SPDX-License-Identifier: GPL-2.0-only
/*
 * A node that runs gets more, or gives some back: whose everything is. That its kernel
 * begins to use what it has got, and has let go of what is taken from it, is between
 * that kernel (inside_resize.c) and whoever calls.
 */
#include "resize.h"

#include <linux/err.h>
#include <linux/file.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "arch/x86/doorbell.h"
#include "core.h"
#include "device.h"
#include "lending.h"
#include "memory.h"

struct insula_ringable *insula_ringable_new(const u32 *cpus, u32 count)
{
	struct insula_ringable *ringable;
	u32 i;

	ringable = kmalloc(struct_size(ringable, apic_ids, count), GFP_KERNEL);
	if (!ringable)
		return NULL;
	ringable->count = count;
	for (i = 0; i < count; i++)
		ringable->apic_ids[i] = insula_core_apic_id(cpus[i]);
	return ringable;
}

/* A node's cores as they are to be: all that can fail is done before anything is taken. */
struct change {
	u32 *cpus;
	u32 count;
	struct insula_ringable *ringable;
};

static void discard(struct change *change)
{
	kfree(change->ringable);
	kfree(change->cpus);
}

static int prepare(struct change *change)
{
	change->ringable = insula_ringable_new(change->cpus, change->count);
	if (change->ringable)
		return 0;
	kfree(change->cpus);
	return -ENOMEM;
}

/* Whoever resets the node's cores resets these from now on. */
static void commit(struct insula_node *node, struct change *change)
{
	lockdep_assert_held(&node->lock);
	insula_watch_change(&node->watch, change->cpus, change->count);
	kfree(node->cpus);
	node->cpus = change->cpus;
	node->cpus_count = change->count;
	/* Who stops the node for what it was lent stops these from now on, and no others. */
	if (node->lending)
		insula_lending_lock(node->lending);
	if (node->area)
		insula_area_change(node->area, change->ringable);
	else
		kfree(change->ringable);
	if (node->lending)
		insula_lending_unlock(node->lending);
}

/* One with programs of its own has told who may be rung for them, for good. */
static int may_change(const struct insula_node *node)
{
	if (node->state != INSULA_RUNNING)
		return -EALREADY;
	return node->desks ? -EOPNOTSUPP : 0;
}

static int prepare_more(struct change *change, const struct insula_node *node, const u32 *cpus,
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
	return prepare(change);
}

static int take(struct insula_node *node, const u32 *cpus, u32 cpus_count, struct file *memory)
{
	int err;

	err = memory ? insula_devices_extend(&node->devices, memory, 0) : 0;
	if (err)
		return err;
	err = insula_cores_take(cpus, cpus_count, node->id);
	if (err)
		goto reduce;
	err = memory ? insula_memory_absorb(node->memory, memory) : 0;
	if (!err)
		return 0;
	/* They have been reset, and execute nothing. */
	insula_cores_give(cpus, cpus_count);
reduce:
	if (memory)
		insula_devices_reduce(&node->devices, memory, 0);
	return err;
}

/* If the node has ended meanwhile and is about to be reaped, all this is reaped with it. */
static int grow(struct insula_node *node, const u32 *cpus, u32 cpus_count, struct file *memory)
{
	struct change change;
	int err = may_change(node);

	if (err)
		return err;
	err = prepare_more(&change, node, cpus, cpus_count);
	if (err)
		return err;
	err = take(node, cpus, cpus_count, memory);
	if (err)
		discard(&change);
	else
		commit(node, &change);
	return err;
}

static bool listed(const u32 *cpus, u32 count, u32 cpu)
{
	while (count--)
		if (cpus[count] == cpu)
			return true;
	return false;
}

/* All are the node's, none twice, none its first. */
static bool removable(const struct insula_node *node, const u32 *cpus, u32 count)
{
	u32 i;

	for (i = 0; i < count; i++)
		if (!listed(node->cpus + 1, node->cpus_count - 1, cpus[i]) ||
		    listed(cpus, i, cpus[i]))
			return false;
	return true;
}

static int prepare_fewer(struct change *change, const struct insula_node *node, const u32 *cpus,
			 u32 count)
{
	u32 i;

	if (!removable(node, cpus, count))
		return -EINVAL;
	change->cpus = kmalloc_array(node->cpus_count, sizeof(*cpus), GFP_KERNEL);
	if (!change->cpus)
		return -ENOMEM;
	change->count = 0;
	for (i = 0; i < node->cpus_count; i++)
		if (!listed(cpus, count, node->cpus[i]))
			change->cpus[change->count++] = node->cpus[i];
	return prepare(change);
}

static int shrink(struct insula_node *node, const u32 *cpus, u32 cpus_count, u32 chunks)
{
	u32 has = insula_memory_count(node->memory);
	struct change change;
	int err = may_change(node);

	if (err)
		return err;
	if (chunks > has - node->chunks_started)
		return -EINVAL;
	err = prepare_fewer(&change, node, cpus, cpus_count);
	if (err)
		return err;
	/* One that does not obey stays the node's, with all that it may reach. */
	err = insula_cores_settle(cpus, cpus_count);
	if (err) {
		discard(&change);
		return err;
	}
	commit(node, &change);
	insula_cores_give(cpus, cpus_count);
	insula_devices_reduce(&node->devices, node->memory, has - chunks);
	insula_memory_drop(node->memory, chunks);
	return 0;
}

/* Core numbers from user space, to be freed; NULL if there are none. */
static u32 *copy_cpus(u64 from, u32 count)
{
	if (count > INSULA_NODE_CPUS_MAX)
		return ERR_PTR(-EINVAL);
	return count ? memdup_user(u64_to_user_ptr(from), count * sizeof(u32)) : NULL;
}

/* The object that a descriptor stands for, claimed; NULL for none. */
static struct file *claim_memory(int fd)
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
	insula_memory_put(memory);
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
	cpus = copy_cpus(request.cpus, request.cpus_count);
	if (IS_ERR(cpus))
		return PTR_ERR(cpus);
	memory = claim_memory(request.memory);
	if (IS_ERR(memory)) {
		kfree(cpus);
		return PTR_ERR(memory);
	}
	err = insula_node_lock(node);
	if (!err) {
		err = grow(node, cpus, request.cpus_count, memory);
		mutex_unlock(&node->lock);
	}
	if (err && memory)
		insula_memory_unclaim(memory);
	if (memory)
		insula_memory_put(memory);
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
	cpus = copy_cpus(request.cpus, request.cpus_count);
	if (IS_ERR(cpus))
		return PTR_ERR(cpus);
	err = insula_node_lock(node);
	if (!err) {
		err = shrink(node, cpus, request.cpus_count, request.chunks);
		mutex_unlock(&node->lock);
	}
	kfree(cpus);
	return err;
}
