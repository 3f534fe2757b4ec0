/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_CLOCK_H
#define INSULA_CLOCK_H

#include <linux/notifier.h>

#include "insula_lwk.h"

/* The base's clocks, as a node is told them. */
struct insula_clock {
	struct notifier_block follower;	/* of the base's timekeeping */
	struct insula_lwk_clock *shared;	/* the node can write it, too */
	struct insula_lwk_clock told;	/* what was written there last */
	bool follows;
};

/* Write the clocks, now and whenever this kernel corrects its own. */
void insula_clock_begin(struct insula_clock *clock, struct insula_lwk_clock *shared);

/* Write them no more, from when it returns. Nothing if that is so already. Sleeps not. */
void insula_clock_end(struct insula_clock *clock);

#endif
