/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_CLOCK_H
#define INSULA_CLOCK_H

#include <linux/notifier.h>

#include "insula_lwk.h"

/* The base's clocks, published to a node. */
struct insula_clock {
	struct notifier_block notifier;	/* of the base's timekeeping */
	struct insula_lwk_clock *shared;	/* writable by the node */
	struct insula_lwk_clock last;	/* written there last */
	bool registered;
};

/* Publish the clocks, now and whenever this kernel corrects its own. */
void insula_clock_start(struct insula_clock *clock, struct insula_lwk_clock *shared);

/* Stop publishing; idempotent. On return nothing is written any more. Does not sleep. */
void insula_clock_stop(struct insula_clock *clock);

#endif
