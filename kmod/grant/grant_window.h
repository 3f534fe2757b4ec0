/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_GRANT_WINDOW_H
#define INSULA_GRANT_WINDOW_H

#include <linux/mm_types.h>
#include <linux/mutex.h>
#include <linux/xarray.h>

#include "insula_channel.h"
#include "insula_grant.h"
#include "insula_module.h"

struct insula_grant_channel;
struct insula_node;

/* Pages of a window, the unit in which memory is granted: 2 MiB. */
#define INSULA_GRANT_WINDOW_PAGES	512UL

/* A grant table, for its implementation only: grant.c, grant_window.c. */
struct grant_table {
	struct insula_node *node;
	struct insula_grant_channel *channel;
	struct mm_struct *mm;
	u32 id;
	u32 timeout_ms;
	struct mutex call_lock;		/* all below; never taken in memory reclaim */
	struct xarray windows;		/* by number */
	unsigned long pfns[INSULA_GRANT_WINDOW_PAGES];
	struct insula_pages runs[INSULA_GRANT_RUNS_MAX];
};

/*
 * Grant the part of [at, end) that lies in the window of `at`. Returns the number of pages, and
 * their addresses. -EBUSY: the base keeps changing it, or the node is slow. -EINTR, -EPIPE:
 * ended. Table locked.
 */
int insula_grant_window_add(struct grant_table *table, u64 at, u64 end, u32 flags, u64 *pages);

/* Revoke what is granted of [start, end). Table locked. */
void insula_grant_windows_revoke(struct grant_table *table, u64 start, u64 end);

/* Revoke all of a table that nobody uses any more. */
void insula_grant_windows_remove(struct grant_table *table);

#endif
