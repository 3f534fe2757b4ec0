/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_CONTIG_ALLOC_H
#define INSULA_CONTIG_ALLOC_H

#include <linux/types.h>

#include "insula.h"

/* Physically contiguous memory in multiples of INSULA_GRANULE. */
struct insula_extent {
	phys_addr_t start;
	u64 size;
};

/* 0 if the request is well formed, else -EINVAL. */
int insula_request_check(const struct insula_request *request);

/* Alignment of address and size of each extent for the request. */
u64 insula_request_unit(const struct insula_request *request);

/* Whether an extent lies within the request's bounds. */
bool insula_request_allows(const struct insula_request *request, phys_addr_t start, u64 size);

/*
 * Allocate one cleared extent from the base: the largest available one of at most `most` bytes
 * that the request allows. -ENOMEM: there is none. -EINTR: the caller is being killed.
 */
int insula_contig_alloc(const struct insula_request *request, u64 most,
			struct insula_extent *extent);

/* Whether the base has `size` bytes to spare: trying to allocate more would stall it. */
bool insula_contig_alloc_plausible(u64 size);

/* Return a cleared extent to the base; pinned pages once they are unpinned. */
void insula_contig_free(phys_addr_t start, u64 size);

#endif
