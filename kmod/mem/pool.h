/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_POOL_H
#define INSULA_POOL_H

#include "insula_module.h"
#include "mem/contig_alloc.h"

/*
 * Generation of the pool that an extent was taken from: after a release of the pool, extents of
 * earlier generations return to the base.
 */
typedef u64 insula_pool_generation;

/* INSULA_POOL_RESERVE and INSULA_POOL_RELEASE. */
int insula_pool_reserve(const struct insula_pool *pool, const u32 *cpus);
int insula_pool_release(void);

/* Like insula_contig_alloc(), from the pool. -ENOMEM if nothing in it fits. */
int insula_pool_alloc(const struct insula_request *request, u64 most,
		      struct insula_extent *extent, insula_pool_generation *generation);

/* Return a cleared extent, to the pool if its generation is current, else to the base. */
void insula_pool_free(const struct insula_extent *extent, insula_pool_generation generation);

void insula_pool_count(u64 *total, u64 *free);

#endif
