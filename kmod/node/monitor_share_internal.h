/* SPDX-License-Identifier: GPL-2.0-only */
/* State of a confined node's shared core, for monitor_share.c and monitor_share_clock.c. */
#ifndef INSULA_MONITOR_SHARE_INTERNAL_H
#define INSULA_MONITOR_SHARE_INTERNAL_H

#include <linux/hrtimer.h>
#include <linux/spinlock.h>
#include <linux/types.h>

#include "arch/x86/doorbell.h"
#include "insula_monitor.h"
#include "node/monitor_cores.h"

struct file;

/* A core that is shared. */
struct insula_monitor_sharing {
	bool used;
	u32 cpu;
	u32 percent;
	struct file *memory;		/* the monitor's */
	struct insula_confined_core core;
	u64 *tables;
	struct insula_doorbell doorbell;
	raw_spinlock_t clock_lock;	/* the clock, and `armed` of the area */
	struct hrtimer clock;
	bool open;			/* the LWK may be entered */
	bool orphaned;			/* the node's kernel is executed no more */
	bool gone;			/* so is the monitor */
};

static inline struct insula_monitor_share *
share_words(const struct insula_monitor_sharing *share)
{
	return &share->core.area->share;
}

/* Have the monitor look after the LWK. Any context. */
static inline void share_request(const struct insula_monitor_sharing *share)
{
	insula_monitor_core_request(&share->core, INSULA_MONITOR_REQUEST_SHARE);
}

/* Set up clock and doorbell, which is to be created. */
void insula_monitor_share_init_clock(struct insula_monitor_sharing *share);

#endif
