/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_LOW_H
#define INSULA_LOW_H

#include <linux/bits.h>
#include <linux/types.h>

/* Take from the top of the range, not from its bottom. */
#define INSULA_LOW_FROM_TOP	BIT(0)

/* Find out which pages below 640 KiB the base does not use. */
int insula_low_init(void);
void insula_low_exit(void);

/*
 * Take `size` contiguous cleared bytes within [min, max); their content is kept
 * and put back by insula_low_return(). -ENOMEM if there is no such stretch.
 */
int insula_low_take(u64 size, u64 min, u64 max, unsigned int flags, phys_addr_t *start);
void insula_low_return(phys_addr_t start, u64 size);

void insula_low_count(u64 *total, u64 *free);

#endif
