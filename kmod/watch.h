/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_WATCH_H
#define INSULA_WATCH_H

#include <linux/list.h>

#include "insula_module.h"

/* What is watched of a running node, and whom to tell. */
struct insula_watch {
	struct list_head link;
	const u8 *power_off;	/* the two bytes of struct insula_node_start */
	const u8 *reset;
	bool waits;		/* its kernel waits once it has written one of them */
	const u32 *told;	/* NULL, or where it may tell so: INSULA_AREA_ENDS_BY_CALL */
	const u32 *cpus;
	u32 cpus_count;
	/* Its cores have been reset. In interrupt; the watch is over. */
	void (*ended)(struct insula_watch *watch, enum insula_reason reason);
};

void insula_watch_init(void);
void insula_watch_exit(void);

void insula_watch_add(struct insula_watch *watch);

/* The node's cores are these from now on; whoever had the old ones has let go of them. */
void insula_watch_change(struct insula_watch *watch, const u32 *cpus, u32 cpus_count);

/* Not watched any more, and no call of ended() under way. May be over already. */
void insula_watch_remove(struct insula_watch *watch);

#endif
