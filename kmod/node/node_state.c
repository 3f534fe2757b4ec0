// SPDX-License-Identifier: GPL-2.0-only
/*
 * States of a node:
 *
 *	CREATING  has cores, memory and perhaps devices; belongs to the creating descriptor
 *	CREATED   its first core is being started
 *	RUNNING   belongs to the registry; polled for its end
 *	STOPPED   cores and devices returned or kept; memory kept so that its log can be read
 *	(removed) open descriptors fail with ENODEV
 *
 * Before RUNNING, closing the owning descriptor for any reason removes the node.
 *
 * A stopped node can be recreated and is then CREATING again; closing the owning descriptor
 * makes it STOPPED again. To avoid returning its cores and devices to the base in between, the
 * node keeps them while its supervisor's descriptor is open, unless it is retired: then its end
 * is final.
 */
#include "insula_module.h"

#include <linux/bits.h>
#include <linux/fs.h>
#include <linux/io.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/security.h>
#include <linux/slab.h>

#include "arch/x86/processor.h"
#include "arch/x86/start.h"
#include "channel/area.h"
#include "cpu/core.h"
#include "delegation/slots.h"
#include "device/device.h"
#include "grant/grant_channel.h"
#include "mem/memory.h"
#include "mem/shown.h"
#include "node/copy_pages.h"
#include "node/monitor_share.h"
#include "node/nested_table.h"
#include "node/node_state.h"

/* Reasons after which its supervisor may restart it. */
#define RESTARTABLE	(BIT(INSULA_REASON_POWER_OFF) | BIT(INSULA_REASON_RESET) | \
			 BIT(INSULA_REASON_CRASHED) | BIT(INSULA_REASON_HALTED) | \
			 BIT(INSULA_REASON_HUNG) | BIT(INSULA_REASON_DEVICE_LOST) | \
			 BIT(INSULA_REASON_VIOLATION) | BIT(INSULA_REASON_FINDING))

static struct workqueue_struct *reaper;

int insula_node_state_init(void)
{
	int err = insula_copy_pages_init();

	if (err)
		return err;
	reaper = alloc_workqueue("insula", WQ_UNBOUND, 0);
	if (reaper)
		return 0;
	insula_copy_pages_exit();
	return -ENOMEM;
}

void insula_node_state_exit(void)
{
	destroy_workqueue(reaper);
	insula_copy_pages_exit();
}

static void node_state_free(struct kref *refs)
{
	struct insula_node *node = container_of(refs, struct insula_node, refs);

	insula_devices_free(&node->devices);
	insula_description_put(node->description);
	kfree(node->cpus);
	kfree(node);
}

void insula_node_put(struct insula_node *node)
{
	kref_put(&node->refs, node_state_free);
}

void insula_node_changed(struct insula_node *node)
{
	wake_up_all(&node->changes);
}

static void node_state_set(struct insula_node *node, enum insula_state state)
{
	WRITE_ONCE(node->state, state);
	insula_node_changed(node);
}

/*
 * One of its cores cannot be stopped: leak all of its resources, and thereby pin the module. A
 * core may still use them.
 */
static void node_state_leak(struct insula_node *node)
{
	get_file(node->memory);
	if (node->shared)
		get_file(node->shared);
	if (node->vmm.memory)
		get_file(node->vmm.memory);
	node->has_cores = false;
	node->lost = true;
	pr_crit("node %s could not be stopped: its resources are lost until the machine is reset\n",
		node->named.name);
}

bool insula_node_shares_confined(const struct insula_node *node)
{
	return node->core_share && node->share_by == INSULA_SHARE_BY_VMM;
}

u32 insula_node_share_id(const struct insula_node *node)
{
	return INSULA_MONITOR_SHARE_ID | insula_processor_apic_id(node->cpus[0]);
}

/* Of a core that it shares with a confined node these affect its own kernel alone. */
static void node_state_reset_cores(const struct insula_node *node)
{
	if (insula_node_shares_confined(node))
		insula_start_reset(insula_node_share_id(node));
	else
		insula_cores_reset(node->cpus, node->cpus_count);
}

static int node_state_park_all(const struct insula_node *node)
{
	if (!insula_node_shares_confined(node))
		return insula_cores_park(node->cpus, node->cpus_count);
	return insula_start_park(insula_node_share_id(node)) ? -EIO : 0;
}

static void node_state_give_cores(const struct insula_node *node)
{
	if (insula_node_shares_confined(node))
		insula_cores_unshare_confined(node->cpus[0]);
	else
		insula_cores_give(node->cpus, node->cpus_count);
}

/*
 * Park its cores; if one does not stop, leak the node's resources. From here on revocations do
 * not wait for the node, and only from here on may its cores be reused.
 */
static bool node_state_park_cores(struct insula_node *node)
{
	int err = node_state_park_all(node);

	lockdep_assert_held(&node->lock);
	insula_grant_channel_end(node->grants, err);
	insula_slots_end(node->slots, err);
	insula_nested_table_end(node->vmm.nested, err);
	if (err)
		node_state_leak(node);
	return !err;
}

static void node_state_give_back(struct insula_node *node)
{
	lockdep_assert_held(&node->lock);
	if (!node->has_cores)
		return;
	if (node_state_park_cores(node)) {
		node_state_give_cores(node);
		insula_devices_return(&node->devices);
	}
	node->has_cores = false;
}

/* Whether it keeps its cores for a restart by its supervisor. */
static bool node_state_keeps_cpus(const struct insula_node *node)
{
	return node->supervisor && !node->retired && (node->keep_cpus & BIT(node->reason));
}

/* Stop it: its cores are reset, but may execute until they are parked. */
static void node_state_stop_cores(struct insula_node *node, enum insula_reason reason)
{
	lockdep_assert_held(&node->lock);
	insula_exit_poll_remove(&node->exit_poll);
	node->paused = false;
	insula_devices_disable_dma(&node->devices);
	insula_nested_table_disconnect(node->vmm.nested);
	node_state_reset_cores(node);
	insula_area_disconnect(node->area);
	insula_slots_disconnect(node->slots);
	node->reason = reason;
	node->ended_ns = ktime_get_boottime_ns();
	if (!(BIT(reason) & RESTARTABLE))
		node->retired = true;
}

static void node_state_end(struct insula_node *node, enum insula_reason reason)
{
	node_state_stop_cores(node, reason);
	if (!node_state_keeps_cpus(node))
		node_state_give_back(node);
	else if (node_state_park_cores(node))
		insula_devices_reset(&node->devices);
	node_state_set(node, INSULA_STOPPED);
}

static void node_state_reap(struct work_struct *work)
{
	struct insula_node *node = container_of(work, struct insula_node, reap);
	enum insula_reason exit_reason;

	mutex_lock(&node->lock);
	/* It may have been stopped, and even restarted, before this work ran. */
	exit_reason = READ_ONCE(node->exit_reason);
	if (node->state == INSULA_RUNNING && exit_reason != INSULA_REASON_NONE)
		node_state_end(node, exit_reason);
	mutex_unlock(&node->lock);
	insula_node_put(node);
}

/* Queue work to end it. The caller holds a reference. */
static void node_state_queue_reap(struct insula_node *node, enum insula_reason reason)
{
	WRITE_ONCE(node->exit_reason, reason);
	kref_get(&node->refs);
	if (!queue_work(reaper, &node->reap))
		insula_node_put(node);
}

/* In interrupt. A running node has the registry's reference. */
static void node_state_exit_seen(struct insula_exit_poll *exit_poll, enum insula_reason reason)
{
	node_state_queue_reap(container_of(exit_poll, struct insula_node, exit_poll), reason);
}

void insula_node_unresponsive(struct insula_node *node)
{
	pr_warn("node %s did not release revoked memory in time\n", node->named.name);
	node_state_queue_reap(node, INSULA_REASON_HUNG);
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
	INIT_LIST_HEAD(&node->exit_poll.link);
	INIT_WORK(&node->reap, node_state_reap);
	return node;
}

/*
 * A node's kernel executes in ring 0, and its signature is not checked. So where lockdown
 * forbids kexec_load() of unsigned kernels, it forbids nodes.
 */
int insula_node_may_start(void)
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

int insula_node_take_cores(struct insula_node *node)
{
	int err;

	lockdep_assert_held(&node->lock);
	if (insula_node_shares_confined(node))
		err = insula_cores_share_confined(node->cpus[0], node->core_share, node->id);
	else if (node->core_share)
		err = insula_cores_share(node->cpus[0], node->core_share,
					 node->share_by == INSULA_SHARE_BY_NMI, node->id);
	else
		err = insula_cores_take(node->cpus, node->cpus_count, node->id);
	node->has_cores = !err;
	return err;
}

static bool node_state_start_valid(const struct insula_node *node,
				   const struct insula_node_start *start)
{
	/* Memory that shows an image has its addresses only for a guest. */
	if (insula_memory_is_shown(node->memory) && !node->vmm.pages)
		return false;
	/* Only a lightweight kernel can share a core, and no monitor can. */
	if (node->core_share && (!node->slots || insula_node_confined(node)))
		return false;
	return start->page_table && !(start->page_table & ~PAGE_MASK) &&
	       insula_memory_covers(node->memory, start->page_table, PAGE_SIZE) &&
	       insula_memory_covers(node->memory, start->entry, 1) &&
	       insula_memory_covers(node->memory, start->power_off, 1) &&
	       insula_memory_covers(node->memory, start->reset, 1) &&
	       (!node->slots || insula_slots_nested(node->slots) == node->vmm.nested);
}

/* Find the bytes that it sets at its end. */
static int node_state_find_ends(struct insula_node *node)
{
	void *power_off = insula_memory_address(node->memory, node->start.power_off, 1);
	void *reset = insula_memory_address(node->memory, node->start.reset, 1);

	node->exit_poll.power_off = power_off;
	node->exit_poll.reset = reset;
	return IS_ERR(power_off) ? PTR_ERR(power_off) : PTR_ERR_OR_ZERO(reset);
}

static void node_state_start_exit_poll(struct insula_node *node)
{
	WRITE_ONCE(node->exit_reason, INSULA_REASON_NONE);
	node->exit_poll.monitor = insula_node_monitor_ended(node);
	node->exit_poll.waits = node->slots; /* only the LWK has delegated programs */
	node->exit_poll.node_flags = insula_area_node_flags(node->area);
	node->exit_poll.cpus = node->cpus;
	/* The core that it shares with a confined node is not to be reset. */
	node->exit_poll.cpus_count = insula_node_shares_confined(node) ? 0 : node->cpus_count;
	node->exit_poll.ended = node_state_exit_seen;
	insula_exit_poll_add(&node->exit_poll);
}

/* Enter the node's kernel on its first core, or its monitor on all of them. */
static int node_state_start_cores(struct insula_node *node)
{
	struct insula_entry entry = {
		.address = node->start.entry,
		.page_table = node->start.page_table,
		.argument = node->start.argument,
	};

	if (insula_node_confined(node))
		return insula_node_start_monitor(node);
	if (insula_node_shares_confined(node))
		return insula_start_core(insula_node_share_id(node), &entry, &node->entry_tsc);
	return insula_start_core(insula_processor_apic_id(node->cpus[0]), &entry, &node->entry_tsc);
}

/* Polling starts before the node executes, so that no early reset is missed. */
int insula_node_start(struct insula_node *node, const struct insula_node_start *start)
{
	int err = insula_node_may_start();

	lockdep_assert_held(&node->lock);
	if (err)
		return err;
	if (node->state != INSULA_CREATING)
		return -EBUSY;
	if (!node_state_start_valid(node, start))
		return -EINVAL;
	node->start = *start;
	err = node_state_find_ends(node);
	if (err)
		return err;
	node_state_set(node, INSULA_CREATED);
	node_state_start_exit_poll(node);
	err = node_state_start_cores(node);
	if (err) {
		insula_exit_poll_remove(&node->exit_poll);
		node_state_set(node, INSULA_CREATING);
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
	node_state_set(node, INSULA_RUNNING);
	return 0;
}

int insula_node_stop(struct insula_node *node, enum insula_reason reason)
{
	lockdep_assert_held(&node->lock);
	if (node->state != INSULA_RUNNING)
		return -EALREADY;
	node_state_end(node, reason);
	return 0;
}

int insula_node_supervise(struct insula_node *node, struct file *by,
			  const struct insula_node_supervise *supervise)
{
	lockdep_assert_held(&node->lock);
	if (supervise->keep_cpus & ~RESTARTABLE || supervise->flags & ~INSULA_NODE_UNRESPONSIVE)
		return -EINVAL;
	if (node->owner && node->owner != by)
		return -EPERM;
	if (node->supervisor && node->supervisor != by)
		return -EBUSY;
	node->supervisor = by;
	node->keep_cpus = supervise->keep_cpus;
	node->unresponsive = supervise->flags & INSULA_NODE_UNRESPONSIVE;
	if (node->state == INSULA_STOPPED && !node_state_keeps_cpus(node))
		node_state_give_back(node);
	return 0;
}

void insula_node_retire(struct insula_node *node)
{
	lockdep_assert_held(&node->lock);
	WRITE_ONCE(node->retired, true);
	if (node->state == INSULA_STOPPED && node->reason != INSULA_REASON_BASE)
		node_state_give_back(node);
	insula_node_changed(node);
}

int insula_node_recreate(struct insula_node *node, struct file *by, u32 flags,
			 struct insula_description_data *description)
{
	int err = insula_node_may_start();

	lockdep_assert_held(&node->lock);
	if (err)
		return err;
	if (node->state != INSULA_STOPPED || node->reason == INSULA_REASON_BASE)
		return -EBUSY;
	if (node->lost)
		return -EIO;
	/* A kernel that shares a core of it goes on in its monitor. */
	if (node->vmm.memory && insula_monitor_share_uses(node->vmm.memory))
		return -EBUSY;
	if (insula_memory_is_shown(node->memory))
		return -EOPNOTSUPP;
	if (flags & INSULA_RECREATE_UNLESS_RETIRED && node->retired)
		return -ECANCELED;
	if (!node->has_cores) {
		err = insula_node_take_cores(node);
		if (err)
			return err;
	}
	err = insula_devices_retake(&node->devices, node->memory, node->shared);
	if (!err)
		err = insula_area_unmap(node->area);
	if (!err)
		err = insula_memory_clear(node->memory);
	if (!err)
		err = insula_node_clear_monitor(node);
	if (err) {
		node_state_give_back(node);
		return err;
	}
	insula_description_put(node->description);
	node->description = description;
	node->owner = by;
	if (!(flags & INSULA_RECREATE_UNLESS_RETIRED))
		WRITE_ONCE(node->retired, false);
	node_state_set(node, INSULA_CREATING);
	return 0;
}

/* Abandon a CREATING node whose owner is closed. Returns whether to remove it. */
static bool node_state_abandon(struct insula_node *node)
{
	node->owner = NULL;
	insula_area_disconnect(node->area);
	insula_slots_disconnect(node->slots);
	node_state_give_back(node);
	if (!node->starts)
		return true;
	node_state_set(node, INSULA_STOPPED);
	return false;
}

bool insula_node_file_closed(struct insula_node *node, struct file *file)
{
	lockdep_assert_held(&node->lock);
	if (node->supervisor == file) {
		node->supervisor = NULL;
		node->unresponsive = false;
		if (node->state == INSULA_STOPPED && node->reason != INSULA_REASON_BASE)
			node_state_give_back(node);
	}
	return node->owner == file && node_state_abandon(node);
}

void insula_node_base_down(struct insula_node *node)
{
	int err;

	lockdep_assert_held(&node->lock);
	if (node->state != INSULA_RUNNING)
		return;
	node_state_stop_cores(node, INSULA_REASON_BASE);
	err = node_state_park_all(node);
	insula_grant_channel_end(node->grants, err);
	insula_slots_end(node->slots, err);
	insula_nested_table_end(node->vmm.nested, err);
	insula_devices_reset(&node->devices);
	node_state_set(node, INSULA_STOPPED);
}
