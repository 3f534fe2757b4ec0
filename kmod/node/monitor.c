// SPDX-License-Identifier: GPL-2.0-only
/*
 * Monitors of confined nodes: the memory in which each runs, and its start on all of the node's
 * cores. What the monitor does there is up to vmm/; protocol: insula_monitor.h.
 *
 * Stopping a confined node is no different from stopping another: an INIT resets a core, whether
 * its guest or the monitor runs.
 */
#include "node/monitor.h"

#include <linux/err.h>
#include <linux/file.h>
#include <linux/io.h>
#include <linux/mm.h>

#include "arch/x86/processor.h"
#include "arch/x86/start.h"
#include "cpu/core.h"
#include "device/device.h"
#include "insula_channel.h"
#include "insula_monitor.h"
#include "mem/contig_alloc.h"
#include "mem/memory.h"
#include "mem/shown.h"
#include "node/copy_pages.h"
#include "node/nested_table.h"
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

/* What user space has laid out, checked. */
struct monitor_parts {
	struct insula_monitor *header;
	struct insula_nested_place place;
	struct insula_confined_functions functions;
};

static bool monitor_header_valid(const struct insula_monitor *header, u32 cpus_count,
				 const struct insula_extent *extent)
{
	return header->magic == INSULA_MONITOR_MAGIC &&
	       header->revision == INSULA_MONITOR_REVISION &&
	       header->ended == INSULA_MONITOR_RUNS && header->cores_count >= cpus_count &&
	       header->cores_count <= INSULA_NODE_CPUS_MAX &&
	       header->functions_count <= INSULA_MONITOR_FUNCTIONS &&
	       PAGE_ALIGNED(header->cores | header->nested_page_table) &&
	       IS_ALIGNED(header->functions, sizeof(u64)) &&
	       monitor_has(extent, header->nested_page_table, PAGE_SIZE) &&
	       monitor_has(extent, header->cores,
			   (u64)header->cores_count * INSULA_MONITOR_CORE_SIZE) &&
	       monitor_has(extent, header->functions, header->functions_count *
			   sizeof(struct insula_monitor_function));
}

/* Check what was written for the next start. */
static int monitor_check(struct file *memory, u32 cpus_count,
			 const struct insula_node_confine *request, struct monitor_parts *parts)
{
	struct insula_nested_place *place = &parts->place;
	struct insula_monitor copy;

	if (insula_memory_count(memory) != 1 || !insula_memory_chunk(memory, 0, &place->extent) ||
	    !IS_ALIGNED(request->header, sizeof(u64)) || request->header > place->extent.size ||
	    sizeof(copy) > place->extent.size - request->header ||
	    !PAGE_ALIGNED(request->page_table) ||
	    !monitor_has(&place->extent, request->page_table, PAGE_SIZE))
		return -EINVAL;
	parts->header = phys_to_virt(place->extent.start + request->header);
	copy = *parts->header; /* a process may have it mapped */
	if (!monitor_header_valid(&copy, cpus_count, &place->extent))
		return -EINVAL;
	place->monitor = memory;
	place->root = copy.nested_page_table;
	place->changes = &parts->header->nested_changes;
	place->areas = (struct insula_monitor_areas) { copy.cores, copy.cores_count, memory };
	parts->functions = (struct insula_confined_functions) {
		.extent = place->extent,
		.areas = place->areas,
		.function = phys_to_virt(copy.functions),
		.count = copy.functions_count,
	};
	return 0;
}

/* Take over what is written for the next start. */
static int monitor_prepare(struct insula_node *node, const struct insula_nested_place *place,
			   struct insula_monitor *header)
{
	struct insula_nested_table *nested = insula_nested_table_create(place, node);
	struct insula_copy_pages *pages = NULL;

	if (IS_ERR(nested))
		return PTR_ERR(nested);
	insula_copy_pages_destroy(node->vmm.pages);
	node->vmm.pages = NULL;
	if (insula_memory_is_shown(node->memory))
		pages = insula_copy_pages_create(node->memory, nested, &header->page_doorbell);
	if (IS_ERR(pages)) {
		insula_nested_table_put(nested);
		return PTR_ERR(pages);
	}
	insula_nested_table_put(node->vmm.nested);
	node->vmm.nested = nested;
	node->vmm.pages = pages;
	node->vmm.header = header;
	return 0;
}

/* Attach an object, or the same one again. */
static int monitor_attach(struct insula_node *node, struct file *memory,
			  const struct insula_node_confine *request)
{
	struct monitor_parts parts;
	int err;

	if (node->vmm.memory && node->vmm.memory != memory)
		return -EBUSY;
	err = monitor_check(memory, node->cpus_count, request, &parts);
	if (err)
		return err;
	err = node->vmm.memory ? 0 : insula_memory_claim(memory);
	if (err)
		return err;
	err = monitor_prepare(node, &parts.place, parts.header);
	if (!err)
		node->vmm.start = *request;
	if (!err && !node->vmm.memory)
		node->vmm.memory = get_file(memory);
	else if (!node->vmm.memory)
		insula_memory_unclaim(memory);
	/* That memory is held now. On failure they do nothing, and the caller is told. */
	return err ?: insula_devices_connect(&node->devices, &parts.functions);
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
	if (!insula_processor_virtualizes())
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

static int monitor_start_core(struct insula_node *node, const struct insula_confined_core *core,
			      u64 *tsc)
{
	const struct insula_node_confine *start = &node->vmm.start;
	struct insula_entry entry = {
		.address = start->entry,
		.page_table = start->page_table,
		.argument = start->argument + (u64)core->index * INSULA_MONITOR_CORE_SIZE,
	};

	return insula_start_core(core->apic_id, &entry, tsc);
}

/* The first core last: the node's kernel may ask for the others at once. */
int insula_node_start_monitor(struct insula_node *node)
{
	const struct insula_monitor_cores *cores;
	u32 index = node->cpus_count;
	int err;

	if (!node->vmm.nested)
		return -EINVAL;
	cores = insula_nested_table_cores(node->vmm.nested);
	while (index--) {
		err = monitor_start_core(node, &cores->core[index], &node->entry_tsc);
		if (err) {
			insula_cores_park(node->cpus, node->cpus_count);
			return err;
		}
	}
	return 0;
}

int insula_node_monitor_park_cores(struct insula_node *node, const u32 *cpus, u32 count)
{
	struct insula_monitor_cores *cores;
	int err;

	if (!node->vmm.nested || !count)
		return insula_cores_park(cpus, count);
	cores = insula_nested_table_cores(node->vmm.nested);
	err = insula_monitor_cores_own(cores, cpus, count, false);
	if (!err)
		err = insula_cores_park(cpus, count);
	if (err)
		insula_monitor_cores_own(cores, cpus, count, true);
	else
		insula_monitor_cores_remove(cores, cpus, count);
	return err;
}

int insula_node_monitor_add_cores(struct insula_node *node, const u32 *cpus, u32 count)
{
	struct insula_monitor_cores *cores;
	u32 index;
	u64 tsc;
	int err;

	if (!node->vmm.nested || !count)
		return 0;
	cores = insula_nested_table_cores(node->vmm.nested);
	index = cores->count;
	err = insula_monitor_cores_add(cores, cpus, count);
	for (; !err && index < cores->count; index++)
		err = monitor_start_core(node, &cores->core[index], &tsc);
	if (err)
		insula_node_monitor_park_cores(node, cpus, count);
	return err;
}

/* Unmap chunks from number `first` to before `end`. */
static int monitor_unmap_memory(struct insula_nested_table *nested, struct file *memory, u32 first,
				u32 end)
{
	struct insula_extent extent;

	for (; first < end && insula_memory_chunk(memory, first, &extent); first++)
		insula_nested_memory_unmap(nested, &extent);
	return insula_nested_table_flush(nested);
}

int insula_node_monitor_add_memory(struct insula_node *node, struct file *memory)
{
	struct insula_nested_table *nested = node->vmm.nested;
	struct insula_extent extent;
	int err = 0;
	u32 i;

	for (i = 0; nested && insula_memory_chunk(memory, i, &extent); i++) {
		err = insula_nested_memory_map(nested, &extent);
		if (err) {
			monitor_unmap_memory(nested, memory, 0, i);
			break;
		}
	}
	return err;
}

int insula_node_monitor_remove_memory(struct insula_node *node, struct file *memory, u32 first)
{
	struct insula_nested_table *nested = node->vmm.nested;

	return nested ? monitor_unmap_memory(nested, memory, first, U32_MAX) : 0;
}

int insula_node_clear_monitor(struct insula_node *node)
{
	insula_copy_pages_destroy(node->vmm.pages);
	node->vmm.pages = NULL;
	insula_nested_table_put(node->vmm.nested);
	node->vmm.nested = NULL;
	node->vmm.header = NULL;
	return node->vmm.memory ? insula_memory_clear(node->vmm.memory) : 0;
}

void insula_node_drop_monitor(struct insula_node *node)
{
	struct file *memory = node->vmm.memory;

	insula_copy_pages_destroy(node->vmm.pages);
	insula_nested_table_put(node->vmm.nested);
	node->vmm = (struct insula_node_vmm) {};
	if (memory)
		fput(memory);
}

void insula_node_monitor_guest_ids(const struct insula_node *node, u32 *apic_ids)
{
	const struct insula_monitor_cores *cores;
	u32 i;

	if (!node->vmm.nested)
		return;
	cores = insula_nested_table_cores(node->vmm.nested);
	for (i = 0; i < cores->count; i++)
		apic_ids[i] = READ_ONCE(cores->core[i].area->guest_apic_id);
}

const u32 *insula_node_monitor_ended(const struct insula_node *node)
{
	return node->vmm.header ? &node->vmm.header->ended : NULL;
}

u64 insula_node_monitor_address(const struct insula_node *node)
{
	return node->vmm.header ? virt_to_phys(node->vmm.header) : 0;
}

u64 *insula_node_monitor_doorbells(const struct insula_node *node)
{
	BUILD_BUG_ON(INSULA_MONITOR_DOORBELLS <= INSULA_CHANNELS_MAX);
	return node->vmm.header ? node->vmm.header->doorbells : NULL;
}
