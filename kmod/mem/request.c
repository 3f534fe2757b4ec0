// SPDX-License-Identifier: GPL-2.0-only
/*
 * Requests for memory, as user space makes them (struct insula_request).
 */
#include "mem/request.h"

#include <linux/errno.h>
#include <linux/log2.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/nodemask.h>

bool insula_request_is_lowmem(const struct insula_request *request)
{
	return request->max_phys && request->max_phys <= INSULA_LOWMEM_LIMIT;
}

static bool request_blocks_valid(const struct insula_request *request)
{
	return is_power_of_2(request->chunk_max) && request->chunk_max >= INSULA_GRANULE &&
	       !(request->size & (request->chunk_max - 1)) && !insula_request_is_lowmem(request);
}

int insula_request_check(const struct insula_request *request)
{
	u64 unit = insula_request_is_lowmem(request) ? PAGE_SIZE : INSULA_GRANULE;

	if (request->flags & ~INSULA_REQUEST_BLOCKS || !request->size || request->size % unit)
		return -EINVAL;
	if (request->chunk_max % unit)
		return -EINVAL;
	if (request->flags & INSULA_REQUEST_BLOCKS && !request_blocks_valid(request))
		return -EINVAL;
	if (request->max_phys && request->max_phys <= request->min_phys)
		return -EINVAL;
	if (request->numa_node != INSULA_NUMA_ANY &&
	    (request->numa_node < 0 || request->numa_node >= MAX_NUMNODES ||
	     !node_online(request->numa_node)))
		return -EINVAL;
	return 0;
}

u64 insula_request_most(const struct insula_request *request, u64 missing)
{
	return request->chunk_max ? min(missing, request->chunk_max) : missing;
}

u64 insula_request_unit(const struct insula_request *request)
{
	return request->flags & INSULA_REQUEST_BLOCKS ? request->chunk_max : INSULA_GRANULE;
}

bool insula_request_allows_node(const struct insula_request *request, int node)
{
	return request->numa_node == INSULA_NUMA_ANY || request->numa_node == node;
}

bool insula_request_allows(const struct insula_request *request, phys_addr_t start, u64 size)
{
	if (start < request->min_phys)
		return false;
	return !request->max_phys || start + size <= request->max_phys;
}
