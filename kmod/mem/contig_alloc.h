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

/*
 * Allocate one cleared extent from the base: the largest available one of at most `most` bytes
 * that the request allows. -ENOMEM: there is none, or the base has not `most` bytes to spare.
 * -EINTR: the caller is being killed.
 */
int insula_contig_alloc(const struct insula_request *request, u64 most,
			struct insula_extent *extent);

/* Return a cleared extent to the base; pinned pages once they are unpinned. */
void insula_contig_free(const struct insula_extent *extent);

#endif
