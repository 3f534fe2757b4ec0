/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_REQUEST_H
#define INSULA_REQUEST_H

#include <linux/types.h>

#include "insula.h"

/* 0 if the request is well formed, else -EINVAL. */
int insula_request_check(const struct insula_request *request);

/* Whether it is for RAM below 1 MiB. */
bool insula_request_is_lowmem(const struct insula_request *request);

/* Size of the largest extent to allocate of `missing` bytes. Not for lowmem. */
u64 insula_request_most(const struct insula_request *request, u64 missing);

/* Alignment of address and size of each extent. */
u64 insula_request_unit(const struct insula_request *request);

/* Whether memory of this NUMA node may be taken. */
bool insula_request_allows_node(const struct insula_request *request, int node);

/* Whether an extent lies within the request's bounds. */
bool insula_request_allows(const struct insula_request *request, phys_addr_t start, u64 size);

#endif
