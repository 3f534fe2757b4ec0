// SPDX-License-Identifier: GPL-2.0-only
/*
 * Whose each core is. A core is taken by switching it off in the base and hiding
 * it: no longer present, it cannot be switched on again by anyone, and the base
 * stops sending interrupts to "all others" by the APICs' shorthand, which would
 * reach it too (arch/x86/kernel/apic/ipi.c, apic_smt_update()).
 *
 * Both are done from a callback of the CPU hotplug machine, so that they happen
 * inside the base's own procedure: it looks at the mask of present cores when it
 * ends, and turns the shorthand off or on by itself.
 */
#include "insula_module.h"

#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/cpumask.h>
#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include <asm/smp.h>

#include "arch/x86/start.h"
#include "core.h"

struct core {
	u32 owner;	/* enum insula_cpu_owner */
	u32 node;
	bool pooled;	/* goes back to the pool, not to the base */
	bool hidden;	/* not the base's: wanted or taken */
};

static struct {
	struct mutex lock;	/* all below */
	struct core *core;	/* by the base's number */
	u32 taken;
	bool closed;		/* for good: the base goes down */
	int hotplug_state;
} cores = {
	.lock = __MUTEX_INITIALIZER(cores.lock),
};

u32 insula_core_apic_id(u32 cpu)
{
	return per_cpu(x86_cpu_to_apicid, cpu);
}

/* The base wants to switch a core on. */
static int guard_up(unsigned int cpu)
{
	return READ_ONCE(cores.core[cpu].hidden) ? -EBUSY : 0;
}

/* The base has switched a core off. */
static int guard_down(unsigned int cpu)
{
	if (READ_ONCE(cores.core[cpu].hidden))
		set_cpu_present(cpu, false);
	return 0;
}

int insula_cores_init(void)
{
	int state;

	cores.core = kcalloc(nr_cpu_ids, sizeof(*cores.core), GFP_KERNEL);
	if (!cores.core)
		return -ENOMEM;
	state = cpuhp_setup_state_nocalls(CPUHP_BP_PREPARE_DYN, "insula:guard",
					  guard_up, guard_down);
	if (state < 0) {
		kfree(cores.core);
		return state;
	}
	cores.hotplug_state = state;
	return 0;
}

void insula_cores_exit(void)
{
	cpuhp_remove_state_nocalls(cores.hotplug_state);
	kfree(cores.core);
}

/* The base would not let go of a core, perhaps after it had gone down. */
static int keep(u32 cpu, int err)
{
	WRITE_ONCE(cores.core[cpu].hidden, false);
	set_cpu_present(cpu, true);
	/* 1: somebody else had just switched it off. So it stays. */
	if (err > 0)
		return -ENODEV;
	if (!cpu_online(cpu) && add_cpu(cpu) < 0)
		pr_err("core %u was not taken, and does not come online again\n", cpu);
	return err ? err : -EIO;
}

/* Switch one off and park it. */
static int hide(u32 cpu)
{
	int err;

	lockdep_assert_held(&cores.lock);
	WRITE_ONCE(cores.core[cpu].hidden, true);
	err = remove_cpu(cpu);
	if (err || cpu_present(cpu))
		return keep(cpu, err);
	err = insula_start_settle(insula_core_apic_id(cpu));
	if (err)
		return keep(cpu, err);
	WRITE_ONCE(cores.taken, cores.taken + 1);
	return 0;
}

/* Switch one on that is parked, or was reset. */
static int unhide(u32 cpu)
{
	int err;

	lockdep_assert_held(&cores.lock);
	WRITE_ONCE(cores.core[cpu].owner, INSULA_CPU_BASE);
	smp_mb(); /* who closes sees that it is the base's, or we see that it is closed */
	if (READ_ONCE(cores.closed))
		return -ESHUTDOWN;
	/* Where it is parked is not the base's to leave alone, should it not come online. */
	insula_start_reset(insula_core_apic_id(cpu));
	cores.core[cpu] = (struct core) { .owner = INSULA_CPU_BASE };
	WRITE_ONCE(cores.taken, cores.taken - 1);
	set_cpu_present(cpu, true);
	err = add_cpu(cpu);
	if (err < 0)
		pr_err("core %u is the base's again but does not come online: %d\n", cpu, err);
	return min(err, 0); /* 1: somebody else has just switched it on */
}

static bool listed(const u32 *cpus, u32 count, u32 cpu)
{
	while (count--)
		if (cpus[count] == cpu)
			return true;
	return false;
}

/* Whether the machine has, or may get, such a core and it can be taken at all. */
static bool is_takable(u32 cpu)
{
	return cpu && cpu < nr_cpu_ids && cpu_possible(cpu);
}

bool insula_cores_are_takable(const u32 *cpus, u32 count)
{
	while (count--)
		if (!is_takable(cpus[count]))
			return false;
	return true;
}

/* Whether all can be taken, before any is. */
static int check(const u32 *cpus, u32 count, bool from_pool)
{
	u32 i, cpu;

	if (READ_ONCE(cores.closed))
		return -ESHUTDOWN;
	for (i = 0; i < count; i++) {
		cpu = cpus[i];
		if (!is_takable(cpu) || listed(cpus, i, cpu))
			return -EINVAL;
		if (cores.core[cpu].owner == INSULA_CPU_NODE)
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

static void put_back(u32 cpu)
{
	struct core *core = &cores.core[cpu];

	lockdep_assert_held(&cores.lock);
	if (core->pooled) {
		WRITE_ONCE(core->owner, INSULA_CPU_POOL);
		core->node = 0;
		return;
	}
	unhide(cpu);
}

static int take_locked(const u32 *cpus, u32 count, u32 owner, u32 node)
{
	bool to_pool = owner == INSULA_CPU_POOL;
	struct core *core;
	u32 i;
	int err = check(cpus, count, !to_pool);

	for (i = 0; !err && i < count; i++) {
		core = &cores.core[cpus[i]];
		if (core->owner == INSULA_CPU_BASE) {
			err = hide(cpus[i]);
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
			put_back(cpus[i]);
		}
	}
	return err;
}

int insula_cores_take(const u32 *cpus, u32 count, u32 node)
{
	int err;

	mutex_lock(&cores.lock);
	err = take_locked(cpus, count, INSULA_CPU_NODE, node);
	mutex_unlock(&cores.lock);
	return err;
}

int insula_cores_reserve(const u32 *cpus, u32 count)
{
	int err;

	mutex_lock(&cores.lock);
	err = take_locked(cpus, count, INSULA_CPU_POOL, 0);
	mutex_unlock(&cores.lock);
	return err;
}

int insula_cores_settle(const u32 *cpus, u32 count)
{
	int err = 0;

	while (count--) {
		if (!insula_start_settle(insula_core_apic_id(cpus[count])))
			continue;
		pr_crit("core %u does not obey a reset: it may still execute\n", cpus[count]);
		err = -EIO;
	}
	return err;
}

void insula_cores_give(const u32 *cpus, u32 count)
{
	/* Who found before that they may be rung has rung them: see insula_session_ring(). */
	if (count)
		synchronize_rcu();
	mutex_lock(&cores.lock);
	while (count--)
		put_back(cpus[count]);
	mutex_unlock(&cores.lock);
}

void insula_cores_reset(const u32 *cpus, u32 count)
{
	while (count--)
		insula_start_reset(insula_core_apic_id(cpus[count]));
}

void insula_cores_close(void)
{
	insula_start_forbid();
	WRITE_ONCE(cores.closed, true);
	smp_mb(); /* who gives a core back sees that, or we see that it is the base's */
}

/* Without the lock, whose holder may have been stopped. */
static bool is_nodes(u32 cpu)
{
	return READ_ONCE(cores.core[cpu].owner) == INSULA_CPU_NODE;
}

/* One that is being switched off executes the base as long as the base has it. */
static bool is_taken(u32 cpu)
{
	return READ_ONCE(cores.core[cpu].hidden) && !cpu_present(cpu);
}

void insula_cores_reset_all(void)
{
	u32 cpu;

	for_each_possible_cpu(cpu)
		if (is_taken(cpu))
			insula_start_reset(insula_core_apic_id(cpu));
}

void insula_cores_settle_all(void)
{
	u32 cpu;

	for_each_possible_cpu(cpu)
		if (is_nodes(cpu))
			insula_cores_settle(&cpu, 1);
	/* Where they are parked the next kernel puts what it likes. */
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
		err = unhide(cpu);
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

/* The owners of cores as far as there is room: how many there are. */
static u32 list_cores(struct insula_cpu *list, u32 room)
{
	u32 cpu, count = 0;

	mutex_lock(&cores.lock);
	for_each_possible_cpu(cpu) {
		if (!cpu_present(cpu) && cores.core[cpu].owner == INSULA_CPU_BASE)
			continue;
		if (count < room)
			list[count] = (struct insula_cpu) {
				.cpu = cpu,
				.apic_id = insula_core_apic_id(cpu),
				.owner = cores.core[cpu].owner,
				.node = cores.core[cpu].node,
			};
		count++;
	}
	mutex_unlock(&cores.lock);
	return count;
}

/* The caller's memory may come from a node, which is not waited for with the lock. */
int insula_cores_list(u64 to, u32 capacity, u32 *count)
{
	u32 room = min(capacity, nr_cpu_ids);
	struct insula_cpu *list = kvcalloc(room, sizeof(*list), GFP_KERNEL);
	int err = 0;

	if (!list && room)
		return -ENOMEM;
	*count = list_cores(list, room);
	if (copy_to_user(u64_to_user_ptr(to), list, min(room, *count) * sizeof(*list)))
		err = -EFAULT;
	kvfree(list);
	return err;
}
