/* SPDX-License-Identifier: GPL-2.0-only */
/* Differences between kernels in setting up and deleting timers. */
#ifndef INSULA_COMPAT_TIMER_H
#define INSULA_COMPAT_TIMER_H

#include <linux/hrtimer.h>
#include <linux/timer.h>

/* 6.13, 908a1d775422 ("hrtimers: Introduce hrtimer_setup() to replace hrtimer_init()") */
static inline void insula_hrtimer_setup(struct hrtimer *timer,
					enum hrtimer_restart (*function)(struct hrtimer *timer))
{
#ifdef INSULA_HAS_HRTIMER_SETUP
	hrtimer_setup(timer, function, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
#else
	hrtimer_init(timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
	timer->function = function;
#endif
}

/* 6.2, 9b13df3fb64e ("timers: Rename del_timer_sync() to timer_delete_sync()") */
#ifdef INSULA_HAS_TIMER_DELETE_SYNC
#define insula_timer_delete_sync(timer)	timer_delete_sync(timer)
#else
#define insula_timer_delete_sync(timer)	del_timer_sync(timer)
#endif

#endif
