/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_LOWMEM_H
#define INSULA_LOWMEM_H

#include <linux/bits.h>
#include <linux/types.h>

/* Allocate from the top of the range, not from its bottom. */
#define INSULA_LOWMEM_FROM_TOP	BIT(0)

/* Find the pages below 640 KiB that the base does not use. */
int insula_lowmem_init(void);
void insula_lowmem_exit(void);

/*
 * Allocate `size` contiguous cleared bytes in [min, max); insula_lowmem_free() restores their
 * former content. -ENOMEM if there is no such range.
 */
int insula_lowmem_alloc(u64 size, u64 min, u64 max, unsigned int flags, phys_addr_t *start);
void insula_lowmem_free(phys_addr_t start, u64 size);

void insula_lowmem_count(u64 *total, u64 *free);

#endif
