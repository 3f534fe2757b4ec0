/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_POOL_H
#define INSULA_POOL_H

#include "insula_module.h"
#include "take.h"

/*
 * Which filling of the pool an extent is from: one that comes back after the
 * pool was released goes to the base.
 */
typedef u64 insula_pool_stamp;

/* INSULA_POOL_RESERVE and INSULA_POOL_RELEASE. */
int insula_pool_reserve(const struct insula_pool *pool, const u32 *cpus);
int insula_pool_release(void);

/* As insula_take(), from the pool. -ENOMEM if nothing in it fits. */
int insula_pool_take(const struct insula_request *request, u64 most,
		     struct insula_extent *extent, insula_pool_stamp *stamp);

/* Give an extent back, cleared, to where its stamp says it came from. */
void insula_pool_give(const struct insula_extent *extent, insula_pool_stamp stamp);

void insula_pool_count(u64 *total, u64 *free);

#endif
