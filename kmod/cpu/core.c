// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ownership of cores. A core is taken by offlining it in the base and hiding it: no longer
 * present, it cannot be onlined by anyone, and the base stops using the APICs' "all others"
 * shorthand for IPIs, which would reach it too (arch/x86/kernel/apic/ipi.c,
 * apic_smt_update()).
 *
 * A shared core stays in the base, which must not take it offline meanwhile: another callback
 * refuses that.
 *
 * A confined node's core can be shared with another node. If the first returns it, it is the
 * other's, until that has ended, too.
 *
 * It is hidden from a CPU hotplug callback, inside the base's own offlining: at its end that
 * checks the mask of present cores, and switches the shorthand off or on by itself.
 */
#include "insula_module.h"

#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/cpumask.h>
#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "arch/x86/processor.h"
#include "arch/x86/shared_core.h"
#include "arch/x86/start.h"
#include "cpu/core.h"
#include "node/monitor_share.h"

struct core {
	u32 owner;	/* enum insula_cpu_owner */
	u32 node;
	u32 sharing;	/* node of a lightweight kernel that shares it with `node`, or 0 */
	bool pooled;	/* returns to the pool, not to the base */
	bool hidden;	/* not the base's: taken, or being taken */
};

static struct {
	struct mutex lock;	/* all below */
	struct core *core;	/* by the base's number */
	u32 taken;
	bool closed;		/* final: the base goes down */
	int hotplug_state, share_state;
} cores = {
	.lock = __MUTEX_INITIALIZER(cores.lock),
};

/* CPU hotplug callback: the base is about to online a core. */
static int core_guard_up(unsigned int cpu)
{
	return READ_ONCE(cores.core[cpu].hidden) ? -EBUSY : 0;
}

/* CPU hotplug callback: the base has offlined a core. */
static int core_guard_down(unsigned int cpu)
{
	if (READ_ONCE(cores.core[cpu].hidden))
		set_cpu_present(cpu, false);
	return 0;
}

/* CPU hotplug callback: the base is about to offline a core. */
static int core_guard_shared(unsigned int cpu)
{
	return READ_ONCE(cores.core[cpu].owner) == INSULA_CPU_SHARED ? -EBUSY : 0;
}

int insula_cores_init(void)
{
	int state;

	cores.core = kcalloc(nr_cpu_ids, sizeof(*cores.core), GFP_KERNEL);
	if (!cores.core)
		return -ENOMEM;
	state = cpuhp_setup_state_nocalls(CPUHP_BP_PREPARE_DYN, "insula:guard",
					  core_guard_up, core_guard_down);
	if (state < 0) {
		kfree(cores.core);
		return state;
	}
	cores.hotplug_state = state;
	state = cpuhp_setup_state_nocalls(CPUHP_AP_ONLINE_DYN, "insula:shared", NULL,
					  core_guard_shared);
	if (state < 0) {
		insula_cores_exit();
		return state;
	}
	cores.share_state = state;
	return 0;
}

void insula_cores_exit(void)
{
	if (cores.share_state)
		cpuhp_remove_state_nocalls(cores.share_state);
	cpuhp_remove_state_nocalls(cores.hotplug_state);
	kfree(cores.core);
}

/* A core could not be taken: undo, bringing it online again if it had gone offline. */
static int core_keep(u32 cpu, int err)
{
	WRITE_ONCE(cores.core[cpu].hidden, false);
	set_cpu_present(cpu, true);
	/* 1: somebody else has just offlined it. So it stays. */
	if (err > 0)
		return -ENODEV;
	if (!cpu_online(cpu) && add_cpu(cpu) < 0)
		pr_err("cpu %u was not taken, but does not come online again\n", cpu);
	return err ? err : -EIO;
}

/* Offline, hide and park a core. */
static int core_hide(u32 cpu)
{
	int err;

	lockdep_assert_held(&cores.lock);
	WRITE_ONCE(cores.core[cpu].hidden, true);
	err = remove_cpu(cpu);
	if (err || cpu_present(cpu))
		return core_keep(cpu, err);
	err = insula_start_park(insula_processor_apic_id(cpu));
	if (err)
		return core_keep(cpu, err);
	WRITE_ONCE(cores.taken, cores.taken + 1);
	return 0;
}

/* Return a core that is parked, or was reset, to the base. */
static int core_unhide(u32 cpu)
{
	int err;

	lockdep_assert_held(&cores.lock);
	WRITE_ONCE(cores.core[cpu].owner, INSULA_CPU_BASE);
	smp_mb(); /* either insula_cores_close() sees the new owner, or we see `closed` */
	if (READ_ONCE(cores.closed))
		return -ESHUTDOWN;
	/* Reset, should it not come online: the base does not know of the parking page. */
	insula_start_reset(insula_processor_apic_id(cpu));
	cores.core[cpu] = (struct core) { .owner = INSULA_CPU_BASE };
	WRITE_ONCE(cores.taken, cores.taken - 1);
	set_cpu_present(cpu, true);
	err = add_cpu(cpu);
	if (err < 0)
		pr_err("cpu %u was returned to the base but does not come online: %d\n", cpu, err);
	return min(err, 0); /* 1: somebody else has just onlined it */
}

static bool core_listed(const u32 *cpus, u32 count, u32 cpu)
{
	while (count--)
		if (cpus[count] == cpu)
			return true;
	return false;
}

/* Whether it is a possible core other than the boot core. */
static bool core_is_takable(u32 cpu)
{
	return cpu && cpu < nr_cpu_ids && cpu_possible(cpu);
}

bool insula_cores_are_takable(const u32 *cpus, u32 count)
{
	while (count--)
		if (!core_is_takable(cpus[count]))
			return false;
	return true;
}

/* Check that all can be taken, before any is. */
static int core_check(const u32 *cpus, u32 count, bool from_pool)
{
	u32 i, cpu;

	if (READ_ONCE(cores.closed))
		return -ESHUTDOWN;
	for (i = 0; i < count; i++) {
		cpu = cpus[i];
		if (!core_is_takable(cpu) || core_listed(cpus, i, cpu))
			return -EINVAL;
		if (cores.core[cpu].owner == INSULA_CPU_NODE ||
		    cores.core[cpu].owner == INSULA_CPU_SHARED)
			return -EBUSY;
		if (cores.core[cpu].owner == INSULA_CPU_POOL) {
			if (!from_pool)
				return -EBUSY;
			continue;
		}
		if (!cpu_online(cpu))
			return -ENODEV;
	}
	return 0;
}

static void core_unshare(u32 cpu)
{
	lockdep_assert_held(&cores.lock);
	insula_shared_core_destroy(cpu);
	WRITE_ONCE(cores.core[cpu].owner, INSULA_CPU_BASE);
	cores.core[cpu].node = 0;
	WRITE_ONCE(cores.taken, cores.taken - 1);
}

static void core_put_back(u32 cpu)
{
	struct core *core = &cores.core[cpu];

	lockdep_assert_held(&cores.lock);
	if (core->owner == INSULA_CPU_SHARED) {
		core_unshare(cpu);
		return;
	}
	if (core->sharing && insula_monitor_share_is_orphan(insula_processor_apic_id(cpu))) {
		core->node = core->sharing;
		return;
	}
	if (core->pooled) {
		WRITE_ONCE(core->owner, INSULA_CPU_POOL);
		core->node = 0;
		return;
	}
	core_unhide(cpu);
}

static int core_take_locked(const u32 *cpus, u32 count, u32 owner, u32 node)
{
	bool to_pool = owner == INSULA_CPU_POOL;
	struct core *core;
	u32 i;
	int err = core_check(cpus, count, !to_pool);

	for (i = 0; !err && i < count; i++) {
		core = &cores.core[cpus[i]];
		if (core->owner == INSULA_CPU_BASE) {
			err = core_hide(cpus[i]);
			if (err)
				break;
			core->pooled = to_pool;
		}
		WRITE_ONCE(core->owner, owner);
		core->node = node;
	}
	if (err) {
		while (i--) {
			cores.core[cpus[i]].pooled &= !to_pool;
			core_put_back(cpus[i]);
		}
	}
	return err;
}

int insula_cores_take(const u32 *cpus, u32 count, u32 node)
{
	int err;

	mutex_lock(&cores.lock);
	err = core_take_locked(cpus, count, INSULA_CPU_NODE, node);
	mutex_unlock(&cores.lock);
	return err;
}

/* The owner first: then the core does not go offline any more. */
static int core_share_locked(u32 cpu, u32 percent, bool by_nmi, u32 node)
{
	int err = core_check(&cpu, 1, false);

	if (err)
		return err;
	cpus_read_lock();
	WRITE_ONCE(cores.core[cpu].owner, INSULA_CPU_SHARED);
	err = cpu_online(cpu) ? 0 : -ENODEV;
	cpus_read_unlock();
	if (!err)
		err = insula_shared_core_create(cpu, percent, by_nmi);
	if (err) {
		WRITE_ONCE(cores.core[cpu].owner, INSULA_CPU_BASE);
		return err;
	}
	cores.core[cpu].node = node;
	WRITE_ONCE(cores.taken, cores.taken + 1);
	return 0;
}

int insula_cores_share(u32 cpu, u32 percent, bool by_nmi, u32 node)
{
	int err;

	mutex_lock(&cores.lock);
	err = core_share_locked(cpu, percent, by_nmi, node);
	mutex_unlock(&cores.lock);
	return err;
}

static int core_share_confined_locked(u32 cpu, u32 percent, u32 node)
{
	int err;

	if (READ_ONCE(cores.closed))
		return -ESHUTDOWN;
	if (!core_is_takable(cpu) || cores.core[cpu].owner != INSULA_CPU_NODE)
		return -ENODEV;
	if (cores.core[cpu].sharing)
		return -EBUSY;
	err = insula_monitor_share_create(cpu, percent);
	if (!err)
		cores.core[cpu].sharing = node;
	return err;
}

int insula_cores_share_confined(u32 cpu, u32 percent, u32 node)
{
	int err;

	mutex_lock(&cores.lock);
	err = core_share_confined_locked(cpu, percent, node);
	mutex_unlock(&cores.lock);
	return err;
}

void insula_cores_unshare_confined(u32 cpu)
{
	struct core *core = &cores.core[cpu];
	bool left;

	mutex_lock(&cores.lock);
	left = core->owner == INSULA_CPU_NODE && core->node == core->sharing;
	insula_monitor_share_destroy(cpu);
	core->sharing = 0;
	if (left)
		core_put_back(cpu);
	mutex_unlock(&cores.lock);
}

int insula_cores_reserve(const u32 *cpus, u32 count)
{
	int err;

	mutex_lock(&cores.lock);
	err = core_take_locked(cpus, count, INSULA_CPU_POOL, 0);
	mutex_unlock(&cores.lock);
	return err;
}

int insula_cores_park(const u32 *cpus, u32 count)
{
	int err = 0;

	while (count--) {
		if (!insula_start_park(insula_processor_apic_id(cpus[count])))
			continue;
		pr_crit("cpu %u does not respond to a reset: it may still execute\n", cpus[count]);
		err = -EIO;
	}
	return err;
}

void insula_cores_give(const u32 *cpus, u32 count)
{
	/* Wait for doorbell rings in flight to these cores: see insula_session_ring(). */
	if (count)
		synchronize_rcu();
	mutex_lock(&cores.lock);
	while (count--)
		core_put_back(cpus[count]);
	mutex_unlock(&cores.lock);
}

void insula_cores_reset(const u32 *cpus, u32 count)
{
	while (count--)
		insula_start_reset(insula_processor_apic_id(cpus[count]));
}

void insula_cores_close(void)
{
	insula_start_forbid();
	WRITE_ONCE(cores.closed, true);
	smp_mb(); /* either core_unhide() sees `closed`, or we see the new owner */
}

/* Without the lock, whose holder's core may have been stopped. */
static bool core_is_nodes(u32 cpu)
{
	return READ_ONCE(cores.core[cpu].owner) == INSULA_CPU_NODE;
}

/* A core that is being offlined still executes the base until it is not present. */
static bool core_is_taken(u32 cpu)
{
	return READ_ONCE(cores.core[cpu].hidden) && !cpu_present(cpu);
}

void insula_cores_reset_all(void)
{
	u32 cpu;

	for_each_possible_cpu(cpu)
		if (core_is_taken(cpu))
			insula_start_reset(insula_processor_apic_id(cpu));
	insula_shared_cores_abandon();
}

/* One that is just becoming shared, or has been, is the base's only. */
static void core_stop_shared(u32 cpu)
{
	struct insula_shared_core_state *shared =
		insula_shared_core_find(insula_processor_apic_id(cpu));

	if (shared)
		insula_shared_core_stop(shared);
}

void insula_cores_park_all(void)
{
	u32 cpu;

	for_each_possible_cpu(cpu)
		if (READ_ONCE(cores.core[cpu].owner) == INSULA_CPU_SHARED)
			core_stop_shared(cpu);
		else if (core_is_nodes(cpu))
			insula_cores_park(&cpu, 1);
	/* Parked cores execute a page that the next kernel may overwrite. */
	insula_cores_reset_all();
}

int insula_cores_release(void)
{
	int err, first_err = 0;
	u32 cpu;

	mutex_lock(&cores.lock);
	for_each_possible_cpu(cpu) {
		cores.core[cpu].pooled = false;
		if (cores.core[cpu].owner != INSULA_CPU_POOL)
			continue;
		err = core_unhide(cpu);
		if (!first_err)
			first_err = err;
	}
	mutex_unlock(&cores.lock);
	return first_err;
}

bool insula_cores_any_taken(void)
{
	return READ_ONCE(cores.taken);
}

/* Fill at most `room` entries. Returns the number of all cores. */
static u32 core_list(struct insula_cpu *list, u32 room)
{
	u32 cpu, count = 0;

	mutex_lock(&cores.lock);
	for_each_possible_cpu(cpu) {
		if (!cpu_present(cpu) && cores.core[cpu].owner == INSULA_CPU_BASE)
			continue;
		if (count < room)
			list[count] = (struct insula_cpu) {
				.cpu = cpu,
				.apic_id = insula_processor_apic_id(cpu),
				.owner = cores.core[cpu].owner,
				.node = cores.core[cpu].node,
			};
		count++;
	}
	mutex_unlock(&cores.lock);
	return count;
}

/* Copied out unlocked: the caller's memory may be a node's, and fault for long. */
int insula_cores_list(u64 to, u32 capacity, u32 *count)
{
	u32 room = min(capacity, nr_cpu_ids);
	struct insula_cpu *list = kvcalloc(room, sizeof(*list), GFP_KERNEL);
	int err = 0;

	if (!list && room)
		return -ENOMEM;
	*count = core_list(list, room);
	if (copy_to_user(u64_to_user_ptr(to), list, min(room, *count) * sizeof(*list)))
		err = -EFAULT;
	kvfree(list);
	return err;
}
