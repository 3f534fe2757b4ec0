// SPDX-License-Identifier: GPL-2.0-only
/*
 * The life of a node:
 *
 *	CREATING  has cores, memory and perhaps devices, belongs to the descriptor that made it
 *	CREATED   its first core is being started
 *	RUNNING   belongs to the registry; watched for its end
 *	STOPPED   cores and devices given back or held, memory kept so that its log can be read
 *	(gone)    removed; descriptors that are still open answer ENODEV
 *
 * Until RUNNING, closing the owner's descriptor ends it all, whatever closed it.
 *
 * A stopped node can be put together anew and is CREATING again; closing the
 * owner's descriptor then makes it STOPPED again. So that its cores and devices need not
 * go to the base and come back in between, they are held for as long as its supervisor's
 * descriptor is open, unless the node is retired: then its end is for good.
 */
#include "insula_module.h"

#include <linux/bits.h>
#include <linux/fs.h>
#include <linux/io.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/security.h>
#include <linux/slab.h>

#include "arch/x86/start.h"
#include "channel.h"
#include "core.h"
#include "desks.h"
#include "device.h"
#include "lending.h"
#include "life.h"
#include "memory.h"

/* Ends after which it may be started again by its supervisor. */
#define HOLDABLE	(BIT(INSULA_REASON_POWER_OFF) | BIT(INSULA_REASON_RESET) | \
			 BIT(INSULA_REASON_CRASHED) | BIT(INSULA_REASON_HALTED) | \
			 BIT(INSULA_REASON_HUNG) | BIT(INSULA_REASON_DEVICE_LOST))

static struct workqueue_struct *reaper;

int insula_life_init(void)
{
	reaper = alloc_workqueue("insula", WQ_UNBOUND, 0);
	return reaper ? 0 : -ENOMEM;
}

void insula_life_exit(void)
{
	destroy_workqueue(reaper);
}

static void free_node(struct kref *refs)
{
	struct insula_node *node = container_of(refs, struct insula_node, refs);

	insula_devices_forget(&node->devices);
	insula_description_put(node->description);
	kfree(node->cpus);
	kfree(node);
}

void insula_node_put(struct insula_node *node)
{
	kref_put(&node->refs, free_node);
}

void insula_node_changed(struct insula_node *node)
{
	wake_up_all(&node->changes);
}

static void set_state(struct insula_node *node, enum insula_state state)
{
	WRITE_ONCE(node->state, state);
	insula_node_changed(node);
}

/*
 * One of its cores cannot be stopped. Nothing goes back, and its memory is held for
 * good, the module with it: what a core may still be using is nobody else's.
 */
static void lose(struct insula_node *node)
{
	insula_memory_hold(node->memory);
	if (node->shared)
		insula_memory_hold(node->shared);
	node->has_cores = false;
	node->lost = true;
	pr_crit("all that node %s has is lost until the machine is reset\n", node->named.name);
}

/*
 * Its cores execute it no more, or all that it has is lost. What it was lent is nobody's
 * to wait for from here on, and only from here on may its cores be somebody else's.
 */
static bool settle(struct insula_node *node)
{
	int err = insula_cores_settle(node->cpus, node->cpus_count);

	lockdep_assert_held(&node->lock);
	insula_lending_end(node->lending, err);
	if (err)
		lose(node);
	return !err;
}

static void give_back(struct insula_node *node)
{
	lockdep_assert_held(&node->lock);
	if (!node->has_cores)
		return;
	if (settle(node)) {
		insula_cores_give(node->cpus, node->cpus_count);
		insula_devices_return(&node->devices);
	}
	node->has_cores = false;
}

/* Whether its supervisor decides on what becomes of its cores. */
static bool is_held(const struct insula_node *node)
{
	return node->supervisor && !node->retired && (node->hold & BIT(node->reason));
}

/* Its cores execute it no more, but for what they do until they obey. */
static void cease(struct insula_node *node, enum insula_reason reason)
{
	lockdep_assert_held(&node->lock);
	insula_watch_remove(&node->watch);
	insula_devices_silence(&node->devices);
	insula_cores_reset(node->cpus, node->cpus_count);
	insula_area_hang_up(node->area);
	insula_desks_hang_up(node->desks);
	node->reason = reason;
	node->ended_ns = ktime_get_boottime_ns();
	if (!(BIT(reason) & HOLDABLE))
		node->retired = true;
}

static void end(struct insula_node *node, enum insula_reason reason)
{
	cease(node, reason);
	if (!is_held(node))
		give_back(node);
	else if (settle(node))
		insula_devices_reset(&node->devices);
	set_state(node, INSULA_STOPPED);
}

static void reap(struct work_struct *work)
{
	struct insula_node *node = container_of(work, struct insula_node, reap);
	enum insula_reason seen;

	mutex_lock(&node->lock);
	/* It may have been stopped, and even started again, before this was run. */
	seen = READ_ONCE(node->seen);
	if (node->state == INSULA_RUNNING && seen != INSULA_REASON_NONE)
		end(node, seen);
	mutex_unlock(&node->lock);
	insula_node_put(node);
}

/* It will be ended soon. The caller holds a reference. */
static void see(struct insula_node *node, enum insula_reason reason)
{
	WRITE_ONCE(node->seen, reason);
	kref_get(&node->refs);
	if (!queue_work(reaper, &node->reap))
		insula_node_put(node);
}

/* In interrupt. The caller of insula_watch_add() holds a reference throughout. */
static void watch_ended(struct insula_watch *watch, enum insula_reason reason)
{
	see(container_of(watch, struct insula_node, watch), reason);
}

void insula_node_unresponsive(struct insula_node *node, const struct insula_lending *lending)
{
	pr_warn("node %s did not give back in time what it was lent\n", node->named.name);
	if (READ_ONCE(node->lending) == lending)
		see(node, INSULA_REASON_HUNG);
}

struct insula_node *insula_node_new(void)
{
	struct insula_node *node = kzalloc(sizeof(*node), GFP_KERNEL);

	if (!node)
		return NULL;
	kref_init(&node->refs);
	init_waitqueue_head(&node->changes);
	mutex_init(&node->lock);
	INIT_LIST_HEAD(&node->devices);
	INIT_LIST_HEAD(&node->watch.link);
	INIT_WORK(&node->reap, reap);
	return node;
}

/*
 * A node's kernel executes in ring 0 and is nobody's to have signed. So where the base
 * would not start an unsigned kernel by kexec_load(), it starts no node.
 */
int insula_node_may_begin(void)
{
	return security_locked_down(LOCKDOWN_KEXEC);
}

int insula_node_lock(struct insula_node *node)
{
	if (mutex_lock_killable(&node->lock))
		return -EINTR;
	if (node->memory)
		return 0;
	mutex_unlock(&node->lock);
	return -ENODEV;
}

static bool start_valid(const struct insula_node *node, const struct insula_node_start *start)
{
	return start->page_table && !(start->page_table & ~PAGE_MASK) &&
	       insula_memory_covers(node->memory, start->page_table, PAGE_SIZE) &&
	       insula_memory_covers(node->memory, start->entry, 1) &&
	       insula_memory_covers(node->memory, start->power_off, 1) &&
	       insula_memory_covers(node->memory, start->reset, 1);
}

static void begin_watch(struct insula_node *node)
{
	WRITE_ONCE(node->seen, INSULA_REASON_NONE);
	node->watch.power_off = phys_to_virt(node->start.power_off);
	node->watch.reset = phys_to_virt(node->start.reset);
	node->watch.waits = node->desks; /* programs are our own kernel's alone */
	node->watch.told = insula_area_told(node->area);
	node->watch.cpus = node->cpus;
	node->watch.cpus_count = node->cpus_count;
	node->watch.ended = watch_ended;
	insula_watch_add(&node->watch);
}

/* It is watched before it executes anything: no reset of it comes too early to be seen. */
int insula_node_start(struct insula_node *node, const struct insula_node_start *start)
{
	struct insula_entry entry = {
		.address = start->entry,
		.page_table = start->page_table,
		.argument = start->argument,
	};
	int err = insula_node_may_begin();

	lockdep_assert_held(&node->lock);
	if (err)
		return err;
	if (node->state != INSULA_CREATING)
		return -EBUSY;
	if (!start_valid(node, start))
		return -EINVAL;
	set_state(node, INSULA_CREATED);
	node->start = *start;
	begin_watch(node);
	err = insula_start_core(insula_core_apic_id(node->cpus[0]), &entry, &node->entry_tsc);
	if (err) {
		insula_watch_remove(&node->watch);
		set_state(node, INSULA_CREATING);
		return err;
	}
	if (!node->starts++)
		kref_get(&node->refs); /* the registry's */
	node->owner = NULL;
	node->chunks_started = insula_memory_count(node->memory);
	node->reason = INSULA_REASON_NONE;
	node->unresponsive = false;
	node->started_ns = ktime_get_boottime_ns();
	node->ended_ns = 0;
	set_state(node, INSULA_RUNNING);
	return 0;
}

int insula_node_stop(struct insula_node *node, enum insula_reason reason)
{
	lockdep_assert_held(&node->lock);
	if (node->state != INSULA_RUNNING)
		return -EALREADY;
	end(node, reason);
	return 0;
}

int insula_node_supervise(struct insula_node *node, struct file *by,
			  const struct insula_node_supervise *supervise)
{
	lockdep_assert_held(&node->lock);
	if (supervise->hold & ~HOLDABLE || supervise->flags & ~INSULA_NODE_UNRESPONSIVE)
		return -EINVAL;
	if (node->owner && node->owner != by)
		return -EPERM;
	if (node->supervisor && node->supervisor != by)
		return -EBUSY;
	node->supervisor = by;
	node->hold = supervise->hold;
	node->unresponsive = supervise->flags & INSULA_NODE_UNRESPONSIVE;
	if (node->state == INSULA_STOPPED && !is_held(node))
		give_back(node);
	return 0;
}

void insula_node_retire(struct insula_node *node)
{
	lockdep_assert_held(&node->lock);
	WRITE_ONCE(node->retired, true);
	if (node->state == INSULA_STOPPED && node->reason != INSULA_REASON_BASE)
		give_back(node);
	insula_node_changed(node);
}

int insula_node_recreate(struct insula_node *node, struct file *by, u32 flags,
			 struct insula_description_data *description)
{
	int err = insula_node_may_begin();

	lockdep_assert_held(&node->lock);
	if (err)
		return err;
	if (node->state != INSULA_STOPPED || node->reason == INSULA_REASON_BASE)
		return -EBUSY;
	if (node->lost)
		return -EIO;
	if (flags & INSULA_RECREATE_UNLESS_RETIRED && node->retired)
		return -ECANCELED;
	if (!node->has_cores) {
		err = insula_cores_take(node->cpus, node->cpus_count, node->id);
		if (err)
			return err;
		node->has_cores = true;
	}
	err = insula_devices_take_again(&node->devices, node->memory, node->shared);
	if (!err)
		err = insula_area_unmap(node->area);
	if (!err)
		err = insula_memory_clear(node->memory);
	if (err) {
		give_back(node);
		return err;
	}
	insula_description_put(node->description);
	node->description = description;
	node->owner = by;
	if (!(flags & INSULA_RECREATE_UNLESS_RETIRED))
		WRITE_ONCE(node->retired, false);
	set_state(node, INSULA_CREATING);
	return 0;
}

/* A node that is CREATING loses its owner. */
static bool abandon(struct insula_node *node)
{
	node->owner = NULL;
	insula_area_hang_up(node->area);
	insula_desks_hang_up(node->desks);
	give_back(node);
	if (!node->starts)
		return true;
	set_state(node, INSULA_STOPPED);
	return false;
}

bool insula_node_leave(struct insula_node *node, struct file *file)
{
	lockdep_assert_held(&node->lock);
	if (node->supervisor == file) {
		node->supervisor = NULL;
		node->unresponsive = false;
		if (node->state == INSULA_STOPPED && node->reason != INSULA_REASON_BASE)
			give_back(node);
	}
	return node->owner == file && abandon(node);
}

void insula_node_base_down(struct insula_node *node)
{
	lockdep_assert_held(&node->lock);
	if (node->state != INSULA_RUNNING)
		return;
	cease(node, INSULA_REASON_BASE);
	insula_lending_end(node->lending, insula_cores_settle(node->cpus, node->cpus_count));
	insula_devices_reset(&node->devices);
	set_state(node, INSULA_STOPPED);
}
