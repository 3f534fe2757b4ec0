/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_EXIT_POLL_H
#define INSULA_EXIT_POLL_H

#include <linux/list.h>

#include "insula_module.h"

/* A running node to be polled. */
struct insula_exit_poll {
	struct list_head link;
	const u8 *power_off;	/* the two bytes of struct insula_node_start */
	const u8 *reset;
	bool waits;		/* its kernel waits after setting one of them */
	const u32 *monitor;	/* NULL, or where its monitor tells that it has ended it */
	const u32 *node_flags;	/* NULL, or may have INSULA_AREA_RESETS_BY_CALL: it waits */
	const u32 *cpus;
	u32 cpus_count;
	/* It has ended: its cores are reset, it is not polled any more. In interrupt. */
	void (*ended)(struct insula_exit_poll *poll, enum insula_reason reason);
};

void insula_exit_poll_init(void);
void insula_exit_poll_exit(void);

void insula_exit_poll_add(struct insula_exit_poll *poll);

/* Replace the node's cores. On return the old array is not used any more. */
void insula_exit_poll_set_cpus(struct insula_exit_poll *poll, const u32 *cpus, u32 cpus_count);

/* Stop polling a node, if it still is. On return no call of ended() is running. */
void insula_exit_poll_remove(struct insula_exit_poll *poll);

#endif
