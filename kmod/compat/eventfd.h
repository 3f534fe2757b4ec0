/* SPDX-License-Identifier: GPL-2.0-only */
/* Differences between kernels in eventfd.h. */
#ifndef INSULA_COMPAT_EVENTFD_H
#define INSULA_COMPAT_EVENTFD_H

#include <linux/eventfd.h>

/* 6.8, 3652117f8548 ("eventfd: simplify eventfd_signal()") */
#ifdef INSULA_EVENTFD_SIGNAL_COUNTS
#define insula_eventfd_signal(context)	((void)eventfd_signal(context, 1))
#else
#define insula_eventfd_signal(context)	eventfd_signal(context)
#endif

#endif
