/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_POOL_H
#define INSULA_POOL_H

#include "insula_module.h"
#include "mem/contig_alloc.h"

/*
 * Generation of the pool that an extent was taken from; 0: not from the pool. A release of the
 * pool begins a new one: extents of earlier ones do not return to it.
 */
typedef u64 insula_pool_generation;

/* INSULA_POOL_RESERVE and INSULA_POOL_RELEASE. */
int insula_pool_reserve(const struct insula_pool *pool, const u32 *cpus);
int insula_pool_release(void);

/* Like insula_contig_alloc(), from the pool. Returns its generation, 0 if nothing in it fits. */
insula_pool_generation insula_pool_alloc(const struct insula_request *request, u64 most,
					 struct insula_extent *extent);

/*
 * Return a cleared extent to the pool. False: it is of an earlier generation or of none, or
 * pinned, and so the caller's to free.
 */
bool insula_pool_free(const struct insula_extent *extent, insula_pool_generation generation);

void insula_pool_count(u64 *total, u64 *free);

#endif
