// SPDX-License-Identifier: GPL-2.0-only
/*
 * The module in a Linux node: what the base gives to it while it runs is brought online,
 * what the base wants back is taken offline first.
 *
 * A core that the base may give later is listed in the node's tables, and this kernel would
 * start it at anybody's wish, with an INIT that hits whoever has that core at the time. So
 * as long as the module is loaded only those cores come online that were when it was loaded,
 * and those that the base has ordered to.
 */
#include "inside_resize.h"

#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/cpumask.h>
#include <linux/ioport.h>
#include <linux/memory.h>
#include <linux/memory_hotplug.h>
#include <linux/mm.h>
#include <linux/nodemask.h>
#include <linux/workqueue.h>

#include "core.h"
#include "inside.h"
#include "insula_order.h"
#include "own_end.h"

/* What must still be available when memory has gone: below it, this kernel would kill. */
#define KEEPS	(32ULL << 20)

static void serve(struct work_struct *work);
static void rung(struct insula_own_end *end, u64 events);

static struct {
	struct insula_own_end end;	/* used by `work` alone */
	struct work_struct work;
	struct cpumask own;		/* cores that may come online */
	int hotplug_state;
} control = {
	.end.rung = rung,
	.work = __WORK_INITIALIZER(control.work, serve),
};

static int guard_up(unsigned int cpu)
{
	if (cpumask_test_cpu(cpu, &control.own))
		return 0;
	pr_warn("processor %u is not this node's, and stays offline\n", cpu);
	return -EBUSY;
}

static int find_cpu(u32 apic_id)
{
	unsigned int cpu;

	for_each_present_cpu(cpu)
		if (insula_core_apic_id(cpu) == apic_id)
			return cpu;
	return -ENODEV;
}

static int bring_online(u32 apic_id)
{
	int cpu = find_cpu(apic_id), err;

	if (cpu < 0)
		return cpu;
	if (cpu_online(cpu))
		return 0;
	cpumask_set_cpu(cpu, &control.own);
	err = add_cpu(cpu);
	if (err)
		cpumask_clear_cpu(cpu, &control.own);
	return err;
}

static int take_offline(u32 apic_id)
{
	int cpu = find_cpu(apic_id), err;

	if (cpu < 0)
		return cpu;
	err = cpu_online(cpu) ? remove_cpu(cpu) : 0;
	if (!err)
		cpumask_clear_cpu(cpu, &control.own);
	return err;
}

static int known_memory(const struct insula_order *order)
{
	return region_intersects(order->start, order->size, IORESOURCE_SYSTEM_RAM,
				 IORES_DESC_NONE);
}

/* Whether it is used at once is up to memhp_default_state= on our command line. */
static int add(const struct insula_order *order)
{
	if (known_memory(order) == REGION_INTERSECTS)
		return 0;
	return add_memory(first_online_node, order->start, order->size, MHP_NONE);
}

/* What lies there must find room elsewhere: to begin is to take it out of use at once. */
static int remove(const struct insula_order *order)
{
	u64 available = (u64)si_mem_available() << PAGE_SHIFT;

	if (known_memory(order) == REGION_DISJOINT)
		return 0;
	if (available < KEEPS || available - KEEPS < order->size) {
		pr_info("too much memory is in use to give %llu MiB back\n", order->size >> 20);
		return -ENOMEM;
	}
	return offline_and_remove_memory(order->start, order->size);
}

static int obey(u8 kind, const struct insula_order *order)
{
	switch (kind) {
	case INSULA_ORDER_ABOUT:
		return 0;
	case INSULA_ORDER_CPU_ON:
		return bring_online(order->apic_id);
	case INSULA_ORDER_CPU_OFF:
		return take_offline(order->apic_id);
	case INSULA_ORDER_MEMORY_ADD:
		return add(order);
	case INSULA_ORDER_MEMORY_REMOVE:
		return remove(order);
	default:
		return -EOPNOTSUPP;
	}
}

static int answer(u8 kind, int error)
{
	struct insula_answer answer = {
		.error = error,
		.memory_block = memory_block_size_bytes(),
	};
	struct insula_message message = {
		.bytes = &answer,
		.bytes_size = sizeof(answer),
		.kind = kind,
	};

	return insula_own_end_send(&control.end, &message);
}

/* -EAGAIN: there is no order. Any other error: there is no talking with the base. */
static int obey_next(void)
{
	struct insula_received received;
	struct insula_order order;
	int err;

	err = insula_own_end_receive(&control.end, &order, sizeof(order), &received);
	if (err)
		return err;
	if (received.size != sizeof(order) || received.pages_count)
		return -EPROTO;
	err = answer(received.kind, obey(received.kind, &order));
	return err == -EAGAIN ? -EPROTO : err;
}

static void serve(struct work_struct *work)
{
	insula_own_end_serve(&control.end, obey_next, NULL);
}

static void rung(struct insula_own_end *end, u64 events)
{
	queue_work(system_unbound_wq, &control.work);
}

int insula_resize_init(void)
{
	int state, err;

	cpus_read_lock();
	cpumask_copy(&control.own, cpu_online_mask);
	state = cpuhp_setup_state_nocalls_cpuslocked(CPUHP_BP_PREPARE_DYN, "insula:own", guard_up,
						     NULL);
	cpus_read_unlock();
	if (state < 0)
		return state;
	control.hotplug_state = state;
	err = insula_inside_claim(&control.end, INSULA_CHANNEL_ORDERS);
	if (err) {
		cpuhp_remove_state_nocalls(state);
		return err;
	}
	rung(&control.end, 0); /* the base may have begun a session before */
	return 0;
}

void insula_resize_exit(void)
{
	insula_own_end_silence(&control.end);
	cancel_work_sync(&control.work);
	insula_own_end_release(&control.end);
	cpuhp_remove_state_nocalls(control.hotplug_state);
}
