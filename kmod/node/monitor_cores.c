// SPDX-License-Identifier: GPL-2.0-only
/*
 * Cores of a confined node, as the module asks their monitors: by a word and an NMI, which they
 * answer by a count (insula_monitor.h).
 *
 * An NMI makes any guest leave for the monitor, so only a monitor that has failed, or a core that
 * is being reset, does not answer. A core whose guest does not run remembers nothing of the nested
 * page table: it flushes before the guest starts, after it has said so in `running`.
 *
 * The base's memory management waits for flushes while it holds locks of its own.
 */
#include "node/monitor_cores.h"

#include <linux/atomic.h>
#include <linux/compiler.h>
#include <linux/delay.h>
#include <linux/errno.h>
#include <linux/file.h>
#include <linux/io.h>
#include <linux/jiffies.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "arch/x86/processor.h"
#include "arch/x86/start.h"
#include "insula_monitor.h"
#include "node/node_state.h"

/* Cores answer within microseconds, or after a pause of the whole machine. */
#define ANSWER_TIMEOUT	(5 * HZ)
/* Polls before sleeping in between. */
#define POLLS		2000
#define POLL_US		20

/* The cores of all confined nodes, while their tables are there. */
static DEFINE_MUTEX(monitor_cores_lock);
static LIST_HEAD(monitor_cores_all);

/* Find the area of a core by its APIC id. */
static int monitor_core_find(struct insula_confined_core *core, u32 apic_id,
			     const struct insula_monitor_areas *areas)
{
	struct insula_monitor_core *area;
	u32 i;

	for (i = 0; i < areas->count; i++) {
		area = phys_to_virt(areas->start + (u64)i * INSULA_MONITOR_CORE_SIZE);
		if (READ_ONCE(area->apic_id) != apic_id)
			continue;
		*core = (struct insula_confined_core) {
			.area = area,
			.index = i,
			.apic_id = apic_id,
		};
		return 0;
	}
	return -EINVAL;
}

/*
 * Clear what a former use of the area has left, but for what counts all uses, and the state that
 * the core may go on from.
 */
static void monitor_core_clear(struct insula_monitor_core *area)
{
	const u32 end = INSULA_MONITOR_STATE + INSULA_MONITOR_STATE_SIZE;
	struct insula_monitor_core kept = *area;

	memset(area, 0, INSULA_MONITOR_STATE);
	memset((void *)area + end, 0, INSULA_MONITOR_CORE_SIZE - end);
	area->apic_id = kept.apic_id;
	area->index = kept.index;
	area->header = kept.header;
	area->guest_apic_id = kept.guest_apic_id;
	area->dropped = kept.dropped;
	memcpy(area->exits, kept.exits, sizeof(area->exits));
}

/* Sets of cores, allocated before they replace the present ones. */
struct monitor_cores_change {
	u32 count;
	struct insula_confined_core *core;
	u32 *apic_ids;
};

static void monitor_cores_discard(struct monitor_cores_change *change)
{
	kfree(change->core);
	kfree(change->apic_ids);
}

static int monitor_cores_prepare(struct monitor_cores_change *change, u32 count)
{
	change->count = count;
	change->core = kcalloc(count, sizeof(*change->core), GFP_KERNEL);
	change->apic_ids = kcalloc(count, sizeof(*change->apic_ids), GFP_KERNEL);
	if (change->core && change->apic_ids)
		return 0;
	monitor_cores_discard(change);
	return -ENOMEM;
}

/* No flush is under way meanwhile. */
static void monitor_cores_replace(struct insula_monitor_cores *cores,
				  struct monitor_cores_change *change)
{
	mutex_lock(&cores->flushing);
	mutex_lock(&cores->lock);
	swap(cores->count, change->count);
	swap(cores->core, change->core);
	swap(cores->apic_ids, change->apic_ids);
	mutex_unlock(&cores->lock);
	mutex_unlock(&cores->flushing);
	monitor_cores_discard(change);
}

int insula_monitor_cores_add(struct insula_monitor_cores *cores, const u32 *cpus, u32 count)
{
	struct monitor_cores_change change;
	u32 i, had = cores->count;
	int err = monitor_cores_prepare(&change, had + count);

	if (err)
		return err;
	if (had) {
		memcpy(change.core, cores->core, had * sizeof(*change.core));
		memcpy(change.apic_ids, cores->apic_ids, had * sizeof(*change.apic_ids));
	}
	for (i = 0; !err && i < count; i++) {
		change.apic_ids[had + i] = insula_processor_apic_id(cpus[i]);
		err = monitor_core_find(&change.core[had + i], change.apic_ids[had + i],
					&cores->areas);
	}
	if (err) {
		monitor_cores_discard(&change);
		return err;
	}
	for (i = had; i < had + count; i++) {
		monitor_core_clear(change.core[i].area);
		WRITE_ONCE(change.core[i].area->owned, 1);
	}
	monitor_cores_replace(cores, &change);
	return 0;
}

static bool monitor_core_listed(const struct insula_confined_core *core, const u32 *cpus, u32 count)
{
	while (count--)
		if (insula_processor_apic_id(cpus[count]) == core->apic_id)
			return true;
	return false;
}

int insula_monitor_cores_own(struct insula_monitor_cores *cores, const u32 *cpus, u32 count,
			     bool owned)
{
	u32 i;

	for (i = 0; i < cores->count; i++)
		if (monitor_core_listed(&cores->core[i], cpus, count))
			WRITE_ONCE(cores->core[i].area->owned, owned);
	return insula_monitor_cores_flush(cores);
}

/* A flush under way waits for them no more: they run no guest. */
void insula_monitor_cores_remove(struct insula_monitor_cores *cores, const u32 *cpus, u32 count)
{
	u32 i, left = 0;

	for (i = 0; i < cores->count; i++)
		if (monitor_core_listed(&cores->core[i], cpus, count))
			WRITE_ONCE(cores->core[i].area->running, 0);
	mutex_lock(&cores->flushing);
	mutex_lock(&cores->lock);
	for (i = 0; i < cores->count; i++) {
		if (monitor_core_listed(&cores->core[i], cpus, count))
			continue;
		cores->core[left] = cores->core[i];
		cores->apic_ids[left++] = cores->apic_ids[i];
	}
	cores->count = left;
	mutex_unlock(&cores->lock);
	mutex_unlock(&cores->flushing);
}

int insula_monitor_cores_init(struct insula_monitor_cores *cores, struct insula_node *node,
			      const struct insula_monitor_areas *areas)
{
	int err;

	*cores = (struct insula_monitor_cores) { .node = node, .areas = *areas };
	mutex_init(&cores->flushing);
	mutex_init(&cores->lock);
	/* Memory reclaim may take them: teach lockdep before that happens. */
	fs_reclaim_acquire(GFP_KERNEL);
	might_lock(&cores->flushing);
	fs_reclaim_release(GFP_KERNEL);
	err = insula_monitor_cores_add(cores, node->cpus, node->cpus_count);
	if (err)
		return err;
	mutex_lock(&monitor_cores_lock);
	list_add_tail(&cores->link, &monitor_cores_all);
	mutex_unlock(&monitor_cores_lock);
	return 0;
}

void insula_monitor_cores_destroy(struct insula_monitor_cores *cores)
{
	mutex_lock(&monitor_cores_lock);
	list_del(&cores->link);
	mutex_unlock(&monitor_cores_lock);
	kfree(cores->core);
	kfree(cores->apic_ids);
}

/* Whether they have a core that runs its node's kernel. */
static bool monitor_cores_have(struct insula_monitor_cores *cores, u32 apic_id,
			       struct insula_confined_core *core)
{
	bool found = false;
	u32 i;

	mutex_lock(&cores->lock);
	for (i = 0; !found && cores->node && !cores->ended && i < cores->count; i++) {
		*core = cores->core[i];
		found = core->apic_id == apic_id && READ_ONCE(core->area->running);
	}
	mutex_unlock(&cores->lock);
	return found;
}

int insula_monitor_cores_find(u32 apic_id, struct insula_confined_core *core,
			      struct file **memory)
{
	struct insula_monitor_cores *cores;
	int err = -ENODEV;

	mutex_lock(&monitor_cores_lock);
	list_for_each_entry(cores, &monitor_cores_all, link) {
		if (!monitor_cores_have(cores, apic_id, core))
			continue;
		*memory = get_file(cores->areas.memory);
		err = 0;
		break;
	}
	mutex_unlock(&monitor_cores_lock);
	return err;
}

void insula_monitor_cores_disconnect(struct insula_monitor_cores *cores)
{
	mutex_lock(&cores->lock);
	cores->node = NULL;
	mutex_unlock(&cores->lock);
}

void insula_monitor_cores_end(struct insula_monitor_cores *cores, bool lost)
{
	mutex_lock(&cores->lock);
	WRITE_ONCE(cores->ended, true);
	cores->lost |= lost;
	mutex_unlock(&cores->lock);
}

bool insula_monitor_cores_lost(const struct insula_monitor_cores *cores)
{
	return READ_ONCE(cores->lost);
}

/* Its monitor takes the word as a whole, by an atomic exchange. */
static atomic64_t *monitor_core_requests(const struct insula_confined_core *core)
{
	return (atomic64_t *)&core->area->requests;
}

void insula_monitor_core_request(const struct insula_confined_core *core, u64 requests)
{
	/* A full barrier, so that the core sees it when the NMI arrives. */
	atomic64_fetch_or(requests, monitor_core_requests(core));
	insula_start_nmi(core->apic_id);
}

void insula_monitor_core_withdraw(const struct insula_confined_core *core, u64 requests)
{
	atomic64_andnot(requests, monitor_core_requests(core));
}

void insula_monitor_core_nmi(const struct insula_confined_core *core)
{
	insula_monitor_core_request(core, INSULA_MONITOR_REQUEST_NMI);
}

/* Ask a core to flush, if its guest runs. */
static void monitor_core_ask(struct insula_confined_core *core, bool interrupt)
{
	core->waits = READ_ONCE(core->area->running);
	if (!core->waits)
		return;
	core->flushes = READ_ONCE(core->area->flushes);
	smp_mb(); /* the count is older than the request */
	if (interrupt)
		insula_monitor_core_request(core, INSULA_MONITOR_REQUEST_FLUSH);
	else
		atomic64_or(INSULA_MONITOR_REQUEST_FLUSH, monitor_core_requests(core));
}

/* Those of a node that is ending may be in reset, but still execute until they are parked. */
static void monitor_cores_ask(struct insula_monitor_cores *cores)
{
	u32 i;

	mutex_lock(&cores->lock);
	smp_mb(); /* either a core that begins to run sees the new table, or we see it run */
	for (i = 0; !cores->ended && i < cores->count; i++)
		monitor_core_ask(&cores->core[i], cores->node);
	mutex_unlock(&cores->lock);
}

static bool monitor_core_is_done(const struct insula_confined_core *core)
{
	return !core->waits || READ_ONCE(core->area->flushes) != core->flushes ||
	       !READ_ONCE(core->area->running);
}

/* -ETIMEDOUT. */
static int monitor_core_wait(struct insula_monitor_cores *cores,
			     const struct insula_confined_core *core, unsigned long deadline)
{
	int polls = POLLS;

	while (!READ_ONCE(cores->ended) && !monitor_core_is_done(core)) {
		if (polls) {
			polls--;
			cpu_relax();
			continue;
		}
		if (time_after(jiffies, deadline))
			return -ETIMEDOUT;
		usleep_range(POLL_US, 2 * POLL_US);
	}
	return 0;
}

static int monitor_cores_wait(struct insula_monitor_cores *cores)
{
	unsigned long deadline = jiffies + ANSWER_TIMEOUT;
	int err = 0;
	u32 i;

	for (i = 0; !err && i < cores->count; i++)
		err = monitor_core_wait(cores, &cores->core[i], deadline);
	return err;
}

/* Reset the node's cores and have it ended. */
static void monitor_cores_stop_node(struct insula_monitor_cores *cores)
{
	mutex_lock(&cores->lock);
	if (!cores->ended) {
		cores->lost = !insula_start_park_all(cores->apic_ids, cores->count);
		WRITE_ONCE(cores->ended, true);
		if (cores->node)
			insula_node_unresponsive(cores->node);
	}
	mutex_unlock(&cores->lock);
}

int insula_monitor_cores_flush(struct insula_monitor_cores *cores)
{
	mutex_lock(&cores->flushing);
	monitor_cores_ask(cores);
	if (monitor_cores_wait(cores))
		monitor_cores_stop_node(cores);
	mutex_unlock(&cores->flushing);
	return insula_monitor_cores_lost(cores) ? -EIO : 0;
}
