// SPDX-License-Identifier: GPL-2.0-only
/*
 * TLB shootdowns in a node: protocol in insula_lwk.h, "Base mappings".
 *
 * The base's memory management waits here while it holds locks of its own, so a node gets a
 * limited time. A core that runs no program needs no interrupt: it flushes its TLB before it
 * next enters one.
 */
#include "delegation/shootdown.h"

#include <linux/compiler.h>
#include <linux/delay.h>
#include <linux/errno.h>
#include <linux/jiffies.h>
#include <linux/sched/mm.h>

#include "arch/x86/doorbell.h"
#include "arch/x86/start.h"
#include "delegation/slots_page.h"
#include "node/nested_table.h"
#include "node/node_state.h"

/* Cores respond within microseconds, or after a pause of the whole machine. */
#define RESPONSE_TIMEOUT	(5 * HZ)
/* Polls before sleeping in between. */
#define POLLS			2000
#define POLL_US			20
/* The page table of no program. */
#define NO_PAGE_TABLE		U64_MAX

/* A shootdown as one core sees it. */
struct shootdown_wait {
	struct insula_lwk_core *core;
	u64 page_table;
	u64 request;
	u64 accesses;		/* when it was requested */
};

void insula_shootdown_init(struct insula_shootdown *shootdown, struct insula_node *node)
{
	mutex_init(&shootdown->lock);
	shootdown->node = node;
	/* Memory reclaim may take the lock: teach lockdep before that happens. */
	fs_reclaim_acquire(GFP_KERNEL);
	might_lock(&shootdown->lock);
	fs_reclaim_release(GFP_KERNEL);
}

void insula_shootdown_disconnect(struct insula_shootdown *shootdown)
{
	mutex_lock(&shootdown->lock);
	shootdown->node = NULL;
	mutex_unlock(&shootdown->lock);
}

void insula_slots_end(struct insula_slots *slots, bool lost)
{
	if (!slots)
		return;
	mutex_lock(&slots->shootdown.lock);
	WRITE_ONCE(slots->shootdown.ended, true);
	slots->shootdown.lost |= lost;
	mutex_unlock(&slots->shootdown.lock);
}

static struct insula_lwk_core *shootdown_core(struct insula_slots *slots, u32 index)
{
	struct insula_lwk_core *cores =
		insula_slots_page_address(slots, 1 + INSULA_LWK_COUNTERS_PAGES);

	return &cores[index];
}

/* Request a flush from all cores. -EPIPE: they are parked. */
static int shootdown_request(struct insula_slots *slots, u64 *request)
{
	struct insula_shootdown *shootdown = &slots->shootdown;
	int err = 0;
	u32 i;

	mutex_lock(&shootdown->lock);
	*request = ++shootdown->requests;
	if (shootdown->ended)
		err = -EPIPE;
	for (i = 0; !err && i < slots->ringable->count; i++)
		WRITE_ONCE(shootdown_core(slots, i)->flush_requests, *request);
	mutex_unlock(&shootdown->lock);
	smp_mb(); /* either a core entering a program sees the request, or we see it run */
	return err;
}

static bool shootdown_is_done(const struct shootdown_wait *wait)
{
	const struct insula_lwk_core *core = wait->core;

	if (wait->accesses & 1 && READ_ONCE(core->accesses) == wait->accesses)
		return false;
	return READ_ONCE(core->running) != wait->page_table ||
	       (s64)(READ_ONCE(core->flushes_done) - wait->request) >= 0;
}

/* Wait for one core. -ETIMEDOUT. */
static int shootdown_wait(struct insula_slots *slots, const struct shootdown_wait *wait,
			  unsigned long deadline)
{
	int polls = POLLS;

	while (!shootdown_is_done(wait)) {
		if (READ_ONCE(slots->shootdown.ended))
			return 0;
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

/* Ring the cores that run a program of the page table. */
static void shootdown_ring(struct insula_slots *slots, u64 page_table)
{
	struct insula_lwk_core *core;
	u32 i;

	for (i = 0; i < slots->ringable->count; i++) {
		core = shootdown_core(slots, i);
		if (READ_ONCE(core->running) == page_table)
			insula_slots_ring(slots, &core->doorbell);
	}
}

static int shootdown_wait_all(struct insula_slots *slots, u64 page_table, u64 request)
{
	unsigned long deadline = jiffies + RESPONSE_TIMEOUT;
	struct shootdown_wait wait = { .page_table = page_table, .request = request };
	u32 i;
	int err;

	for (i = 0; i < slots->ringable->count; i++) {
		wait.core = shootdown_core(slots, i);
		wait.accesses = READ_ONCE(wait.core->accesses);
		err = shootdown_wait(slots, &wait, deadline);
		if (err)
			return err;
	}
	return 0;
}

/* Reset the node's cores and have it ended. */
static void shootdown_stop_node(struct insula_slots *slots)
{
	struct insula_shootdown *shootdown = &slots->shootdown;

	mutex_lock(&shootdown->lock);
	if (!shootdown->ended) {
		shootdown->lost = !insula_start_park_all(slots->ringable->apic_ids,
							 slots->ringable->count);
		WRITE_ONCE(shootdown->ended, true);
		insula_nested_table_end(insula_slots_nested(slots), shootdown->lost);
		if (shootdown->node)
			insula_node_unresponsive(shootdown->node);
	}
	mutex_unlock(&shootdown->lock);
}

int insula_shootdown(struct insula_slots *slots, u64 page_table)
{
	u64 request;
	int err = shootdown_request(slots, &request);

	/* The monitor has a confined node's cores flush; its kernel's own accesses shall end. */
	if (insula_slots_nested(slots))
		page_table = NO_PAGE_TABLE;
	if (!err) {
		shootdown_ring(slots, page_table);
		err = shootdown_wait_all(slots, page_table, request);
	}
	if (err == -ETIMEDOUT)
		shootdown_stop_node(slots);
	return READ_ONCE(slots->shootdown.lost) ? -EIO : 0;
}
