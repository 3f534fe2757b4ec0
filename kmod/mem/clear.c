// SPDX-License-Identifier: GPL-2.0-only
/*
 * Clearing of memory, in parallel on several of the base's cores if it is large: a node may have
 * a terabyte, and its restart waits for the clearing.
 */
#include "mem/clear.h"

#include <linux/atomic.h>
#include <linux/cpumask.h>
#include <linux/math64.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/topology.h>
#include <linux/workqueue.h>

/* Unit of work of a core, and the size that justifies a further core. */
#define PIECE		((u64)SZ_16M)
#define WORTH_A_HELPER	(4 * PIECE)
/* More cores do not write faster: memory bandwidth is the limit. */
#define HELPERS_MAX	15

struct clearing {
	phys_addr_t start;
	u64 size;
	atomic64_t next;	/* offset of the next piece */
};

struct helper {
	struct work_struct work;
	struct clearing *clearing;
};

static struct workqueue_struct *clearers;

int insula_clear_init(void)
{
	clearers = alloc_workqueue("insula_clear", WQ_UNBOUND, 0);
	return clearers ? 0 : -ENOMEM;
}

void insula_clear_exit(void)
{
	destroy_workqueue(clearers);
}

static void clear_piece(phys_addr_t start, u64 size)
{
	unsigned long pfn = PHYS_PFN(start), end = PHYS_PFN(start + size);

	for (; pfn < end; pfn++) {
		clear_page(pfn_to_kaddr(pfn));
		if (!(pfn % PHYS_PFN(INSULA_GRANULE)))
			cond_resched();
	}
}

static void clear_pieces(struct clearing *clearing)
{
	u64 at;

	for (;;) {
		at = atomic64_fetch_add(PIECE, &clearing->next);
		if (at >= clearing->size)
			return;
		clear_piece(clearing->start + at, min(PIECE, clearing->size - at));
	}
}

static void clear_work(struct work_struct *work)
{
	clear_pieces(container_of(work, struct helper, work)->clearing);
}

/* Helpers run on cores of the memory's NUMA node, one of which is the caller's. */
static u32 clear_helpers_for(phys_addr_t start, u64 size)
{
	const struct cpumask *near = cpumask_of_node(pfn_to_nid(PHYS_PFN(start)));
	u32 cores = 0, worth = min_t(u64, div64_u64(size, WORTH_A_HELPER), HELPERS_MAX);
	unsigned int cpu;

	for_each_cpu_and(cpu, near, cpu_online_mask)
		cores++;
	return min(worth, max(cores, 1U) - 1);
}

void insula_clear(phys_addr_t start, u64 size)
{
	struct clearing clearing = { .start = start, .size = size, .next = ATOMIC64_INIT(0) };
	u32 count = clear_helpers_for(start, size), i;
	struct helper *helpers;

	helpers = count ? kcalloc(count, sizeof(*helpers), GFP_KERNEL) : NULL;
	for (i = 0; helpers && i < count; i++) {
		helpers[i].clearing = &clearing;
		INIT_WORK(&helpers[i].work, clear_work);
		queue_work_node(pfn_to_nid(PHYS_PFN(start)), clearers, &helpers[i].work);
	}
	clear_pieces(&clearing);
	/* Cancel work that has not started: there may be no memory for another worker. */
	for (i = 0; helpers && i < count; i++)
		cancel_work_sync(&helpers[i].work);
	kfree(helpers);
}
