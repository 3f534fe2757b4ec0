/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_SHOOTDOWN_H
#define INSULA_SHOOTDOWN_H

#include <linux/mutex.h>
#include <linux/types.h>

struct insula_node;
struct insula_slots;

/* TLB shootdowns in a node, whose delegation area has struct insula_lwk_core for each core. */
struct insula_shootdown {
	struct mutex lock;		/* all below; taken in memory reclaim */
	u64 requests;			/* flush_requests of all cores */
	struct insula_node *node;	/* NULL once it is ending */
	bool ended;			/* its cores are parked */
	bool lost;			/* one could not be: it may execute forever */
};

void insula_shootdown_init(struct insula_shootdown *shootdown, struct insula_node *node);

/* The node is being ended: it is not reported as unresponsive any more. */
void insula_shootdown_disconnect(struct insula_shootdown *shootdown);

/*
 * Wait until no core of the node uses entries of a program's page table that were cleared; of a
 * confined node, until its kernel does not, for what programs do is up to its nested page table. A
 * node that does not respond is stopped. -EIO: a core may use them forever. Sleeps, but waits
 * for no memory: for memory reclaim.
 */
int insula_shootdown(struct insula_slots *slots, u64 page_table);

#endif
