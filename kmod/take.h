/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_TAKE_H
#define INSULA_TAKE_H

#include <linux/types.h>

#include "insula.h"

/* Physically contiguous memory in multiples of INSULA_GRANULE. */
struct insula_extent {
	phys_addr_t start;
	u64 size;
};

/* 0 if the request is well formed, else -EINVAL. */
int insula_request_check(const struct insula_request *request);

/* What each extent for the request must be a multiple of, in place and in size. */
u64 insula_request_unit(const struct insula_request *request);

/* Whether an extent lies where the request wants its chunks. */
bool insula_request_allows(const struct insula_request *request, phys_addr_t start, u64 size);

/*
 * Take one extent of at most `most` bytes from the base, as large as can be had
 * and as the request allows, and clear it. -ENOMEM: there is none. -EINTR: the
 * caller was killed meanwhile.
 */
int insula_take(const struct insula_request *request, u64 most, struct insula_extent *extent);

/* Whether the base can spare `size` bytes: asking for more would stall it. */
bool insula_take_plausible(u64 size);

/* Give a cleared extent back to the base; pages of it that somebody holds, when that ends. */
void insula_give(phys_addr_t start, u64 size);

#endif
