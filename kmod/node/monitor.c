// SPDX-License-Identifier: GPL-2.0-only
/*
 * Monitors of confined nodes: the memory in which each runs, and its start on all of the node's
 * cores. What the monitor does there is up to vmm/; protocol: insula_monitor.h.
 *
 * Stopping a confined node is no different from stopping another: an INIT resets a core, whether
 * its guest or the monitor runs.
 */
#include "node/monitor.h"

#include <linux/atomic.h>
#include <linux/err.h>
#include <linux/file.h>
#include <linux/io.h>
#include <linux/mm.h>

#include "arch/x86/processor.h"
#include "arch/x86/start.h"
#include "cpu/core.h"
#include "insula_channel.h"
#include "insula_monitor.h"
#include "mem/contig_alloc.h"
#include "mem/memory.h"
#include "node/node_state.h"

bool insula_node_confined(const struct insula_node *node)
{
	return node->vmm.memory;
}

/* Whether [start, start + size) is memory of the monitor. */
static bool monitor_has(const struct insula_extent *extent, u64 start, u64 size)
{
	return start >= extent->start && size <= extent->size &&
	       start - extent->start <= extent->size - size;
}

static bool monitor_header_valid(const struct insula_monitor *header,
				 const struct insula_extent *extent, u32 cpus_count)
{
	return header->magic == INSULA_MONITOR_MAGIC &&
	       header->revision == INSULA_MONITOR_REVISION && header->cores_count == cpus_count &&
	       PAGE_ALIGNED(header->cores) && PAGE_ALIGNED(header->nested_page_table) &&
	       monitor_has(extent, header->cores, (u64)cpus_count * INSULA_MONITOR_CORE_SIZE) &&
	       monitor_has(extent, header->nested_page_table, PAGE_SIZE) &&
	       header->ended == INSULA_MONITOR_RUNS;
}

/* Check what was written for the next start. Returns the header, or NULL. */
static struct insula_monitor *monitor_check(struct file *memory, u32 cpus_count,
					    const struct insula_node_confine *request)
{
	struct insula_extent extent;
	struct insula_monitor *header;

	if (insula_memory_count(memory) != 1 || !insula_memory_chunk(memory, 0, &extent) ||
	    !IS_ALIGNED(request->header, sizeof(u64)) || request->header > extent.size ||
	    sizeof(*header) > extent.size - request->header ||
	    !PAGE_ALIGNED(request->page_table) ||
	    !monitor_has(&extent, request->page_table, PAGE_SIZE))
		return NULL;
	header = phys_to_virt(extent.start + request->header);
	return monitor_header_valid(header, &extent, cpus_count) ? header : NULL;
}

/* Attach an object, or the same one again. */
static int monitor_attach(struct insula_node *node, struct file *memory,
			  const struct insula_node_confine *request)
{
	struct insula_monitor *header;
	int err;

	if (node->vmm.memory && node->vmm.memory != memory)
		return -EBUSY;
	header = monitor_check(memory, node->cpus_count, request);
	if (!header)
		return -EINVAL;
	if (!node->vmm.memory) {
		err = insula_memory_claim(memory);
		if (err)
			return err;
		node->vmm.memory = get_file(memory);
	}
	node->vmm.header = header;
	node->vmm.start = *request;
	return 0;
}

int insula_node_confine(struct insula_node *node, struct file *by,
			const struct insula_node_confine *request)
{
	struct file *memory;
	int err;

	if (request->flags)
		return -EINVAL;
	if (node->state != INSULA_CREATING)
		return -EBUSY;
	if (node->owner != by)
		return -EPERM;
	/* Neither devices' DMA nor mappings of the base's pages would be confined. */
	if (!insula_processor_virtualizes() || !list_empty(&node->devices) || node->slots)
		return -EOPNOTSUPP;
	memory = insula_memory_get(request->memory);
	if (IS_ERR(memory))
		return PTR_ERR(memory);
	err = monitor_attach(node, memory, request);
	fput(memory);
	return err;
}

int insula_node_monitor(struct insula_node *node)
{
	return node->vmm.memory ? insula_memory_install(node->vmm.memory) : -ENODATA;
}

static int monitor_start_core(struct insula_node *node, u32 index, u64 *tsc)
{
	const struct insula_node_confine *start = &node->vmm.start;
	struct insula_entry entry = {
		.address = start->entry,
		.page_table = start->page_table,
		.argument = start->argument + (u64)index * INSULA_MONITOR_CORE_SIZE,
	};

	return insula_start_core(insula_processor_apic_id(node->cpus[index]), &entry, tsc);
}

/* The first core last: the node's kernel may ask for the others at once. */
int insula_node_start_monitor(struct insula_node *node)
{
	u32 index = node->cpus_count;
	int err;

	if (!node->vmm.header)
		return -EINVAL;
	while (index--) {
		err = monitor_start_core(node, index, &node->entry_tsc);
		if (err) {
			insula_cores_park(node->cpus, node->cpus_count);
			return err;
		}
	}
	return 0;
}

int insula_node_clear_monitor(struct insula_node *node)
{
	node->vmm.header = NULL;
	return node->vmm.memory ? insula_memory_clear(node->vmm.memory) : 0;
}

void insula_node_drop_monitor(struct insula_node *node)
{
	struct file *memory = node->vmm.memory;

	node->vmm = (struct insula_node_vmm) {};
	if (memory)
		fput(memory);
}

const u32 *insula_node_monitor_ended(const struct insula_node *node)
{
	return node->vmm.header ? &node->vmm.header->ended : NULL;
}

u64 insula_node_monitor_address(const struct insula_node *node)
{
	return node->vmm.header ? virt_to_phys(node->vmm.header) : 0;
}

struct insula_monitor_core *insula_node_monitor_core(const struct insula_node *node, u32 index)
{
	return phys_to_virt(node->vmm.header->cores + (u64)index * INSULA_MONITOR_CORE_SIZE);
}

/* Its monitor takes the word as a whole, by an atomic exchange. */
static atomic64_t *monitor_requests(const struct insula_node *node, u32 index)
{
	return (atomic64_t *)&insula_node_monitor_core(node, index)->requests;
}

void insula_node_monitor_request(const struct insula_node *node, u32 index, u64 request)
{
	/* A full barrier, so that the core sees it when the NMI arrives. */
	atomic64_fetch_or(request, monitor_requests(node, index));
	insula_start_nmi(insula_processor_apic_id(node->cpus[index]));
}

void insula_node_monitor_withdraw(const struct insula_node *node, u32 index, u64 request)
{
	atomic64_andnot(request, monitor_requests(node, index));
}

u64 *insula_node_monitor_doorbells(const struct insula_node *node)
{
	BUILD_BUG_ON(INSULA_MONITOR_DOORBELLS <= INSULA_CHANNELS_MAX);
	return node->vmm.header ? node->vmm.header->doorbells : NULL;
}
