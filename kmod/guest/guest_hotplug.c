// SPDX-License-Identifier: GPL-2.0-only
/*
 * Guest side of CPU and memory hotplug: in a Linux node, brings cores and memory that the base
 * adds online, and takes those that it removes offline first.
 *
 * A core that the base may add later is listed in the node's ACPI tables. Starting it too early
 * would send an INIT to a core that belongs to someone else. So while the module is loaded only
 * cores come online that were online when it was loaded, or that the base has requested.
 */
#include "arch/x86/processor.h"
#include "guest/guest_hotplug.h"

#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/cpumask.h>
#include <linux/err.h>
#include <linux/ioport.h>
#include <linux/memory.h>
#include <linux/memory_hotplug.h>
#include <linux/mm.h>
#include <linux/nodemask.h>
#include <linux/workqueue.h>

#include "channel/endpoint.h"
#include "cpu/core.h"
#include "guest/guest.h"
#include "insula_hotplug.h"

/* Memory that must stay available after a removal, so that the OOM killer stays away. */
#define RESERVE	(32ULL << 20)

static void guest_hotplug_serve(struct work_struct *work);

static struct {
	struct insula_endpoint *endpoint;	/* used by `work` alone */
	struct work_struct work;
	struct cpumask allowed;		/* cores that may come online */
	int hotplug_state;
} hotplug = {
	.work = __WORK_INITIALIZER(hotplug.work, guest_hotplug_serve),
};

static int guest_hotplug_guard(unsigned int cpu)
{
	if (cpumask_test_cpu(cpu, &hotplug.allowed))
		return 0;
	pr_warn("cpu %u does not belong to this node and stays offline\n", cpu);
	return -EBUSY;
}

static int guest_hotplug_find_cpu(u32 apic_id)
{
	unsigned int cpu;

	for_each_present_cpu(cpu)
		if (insula_processor_apic_id(cpu) == apic_id)
			return cpu;
	return -ENODEV;
}

static int guest_hotplug_cpu_online(u32 apic_id)
{
	int cpu = guest_hotplug_find_cpu(apic_id), err;

	if (cpu < 0)
		return cpu;
	if (cpu_online(cpu))
		return 0;
	cpumask_set_cpu(cpu, &hotplug.allowed);
	err = add_cpu(cpu);
	if (err)
		cpumask_clear_cpu(cpu, &hotplug.allowed);
	return err;
}

static int guest_hotplug_cpu_offline(u32 apic_id)
{
	int cpu = guest_hotplug_find_cpu(apic_id), err;

	if (cpu < 0)
		return cpu;
	err = cpu_online(cpu) ? remove_cpu(cpu) : 0;
	if (!err)
		cpumask_clear_cpu(cpu, &hotplug.allowed);
	return err;
}

static int guest_hotplug_known_memory(const struct insula_hotplug_request *request)
{
	return region_intersects(request->start, request->size, IORESOURCE_SYSTEM_RAM,
				 IORES_DESC_NONE);
}

/* Whether it comes online at once depends on memhp_default_state= on the command line. */
static int guest_hotplug_memory_add(const struct insula_hotplug_request *request)
{
	if (guest_hotplug_known_memory(request) == REGION_INTERSECTS)
		return 0;
	return add_memory(first_online_node, request->start, request->size, MHP_NONE);
}

/* Check first for room to migrate its pages: offlining takes all of it out of use at once. */
static int guest_hotplug_memory_remove(const struct insula_hotplug_request *request)
{
	u64 available = (u64)si_mem_available() << PAGE_SHIFT;

	if (guest_hotplug_known_memory(request) == REGION_DISJOINT)
		return 0;
	if (available < RESERVE || available - RESERVE < request->size) {
		pr_info("not enough free memory to remove %llu MiB\n", request->size >> 20);
		return -ENOMEM;
	}
	return offline_and_remove_memory(request->start, request->size);
}

static int guest_hotplug_handle(u8 kind, const struct insula_hotplug_request *request)
{
	switch (kind) {
	case INSULA_HOTPLUG_QUERY:
		return 0;
	case INSULA_HOTPLUG_CPU_ONLINE:
		return guest_hotplug_cpu_online(request->apic_id);
	case INSULA_HOTPLUG_CPU_OFFLINE:
		return guest_hotplug_cpu_offline(request->apic_id);
	case INSULA_HOTPLUG_MEMORY_ADD:
		return guest_hotplug_memory_add(request);
	case INSULA_HOTPLUG_MEMORY_REMOVE:
		return guest_hotplug_memory_remove(request);
	default:
		return -EOPNOTSUPP;
	}
}

static int guest_hotplug_reply(u8 kind, int error)
{
	struct insula_hotplug_reply reply = {
		.error = error,
		.memory_block = memory_block_size_bytes(),
	};
	struct insula_message message = {
		.bytes = &reply,
		.bytes_size = sizeof(reply),
		.kind = kind,
	};

	return insula_endpoint_send(hotplug.endpoint, &message);
}

/* -EAGAIN: no request. Any other error: leave the session. */
static int guest_hotplug_handle_next(void)
{
	struct insula_received received;
	struct insula_hotplug_request request;
	int err;

	err = insula_endpoint_receive(hotplug.endpoint, &request, sizeof(request), &received);
	if (err)
		return err;
	if (received.size != sizeof(request) || received.pages_count)
		return -EPROTO;
	err = guest_hotplug_reply(received.kind, guest_hotplug_handle(received.kind, &request));
	return err == -EAGAIN ? -EPROTO : err;
}

static void guest_hotplug_serve(struct work_struct *work)
{
	insula_endpoint_serve(hotplug.endpoint, guest_hotplug_handle_next, NULL);
}

static void guest_hotplug_rung(struct insula_endpoint *endpoint, u64 events)
{
	queue_work(system_unbound_wq, &hotplug.work);
}

int insula_guest_hotplug_init(void)
{
	int state;

	cpus_read_lock();
	cpumask_copy(&hotplug.allowed, cpu_online_mask);
	state = cpuhp_setup_state_nocalls_cpuslocked(CPUHP_BP_PREPARE_DYN, "insula:hotplug",
						     guest_hotplug_guard, NULL);
	cpus_read_unlock();
	if (state < 0)
		return state;
	hotplug.hotplug_state = state;
	hotplug.endpoint = insula_guest_endpoint_open(INSULA_CHANNEL_HOTPLUG);
	if (IS_ERR(hotplug.endpoint)) {
		cpuhp_remove_state_nocalls(state);
		return PTR_ERR(hotplug.endpoint);
	}
	insula_endpoint_enable(hotplug.endpoint, guest_hotplug_rung);
	guest_hotplug_rung(hotplug.endpoint, 0); /* the base may have begun a session already */
	return 0;
}

void insula_guest_hotplug_exit(void)
{
	insula_endpoint_disable(hotplug.endpoint);
	cancel_work_sync(&hotplug.work);
	insula_endpoint_release(hotplug.endpoint);
	cpuhp_remove_state_nocalls(hotplug.hotplug_state);
}
