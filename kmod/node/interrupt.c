// SPDX-License-Identifier: GPL-2.0-only
/*
 * Interrupts and NMIs that the base sends a node's core: directly, or by who has the core for it, the
 * base on a core that it shares with the node, or a monitor.
 */
#include "insula_module.h"

#include "arch/x86/processor.h"
#include "arch/x86/shared_core.h"
#include "arch/x86/start.h"
#include "node/interrupt.h"
#include "node/monitor_cores.h"
#include "node/monitor_share.h"
#include "node/nested_table.h"
#include "node/node_state.h"

/* A confined node's monitor gets NMIs of its own, and must not take it for one of these. */
static void send_nmi(const struct insula_node *node, u32 index, u32 apic_id)
{
	const struct insula_monitor_cores *cores;

	if (!insula_node_confined(node)) {
		insula_start_nmi(apic_id);
		return;
	}
	cores = insula_nested_table_cores(node->vmm.nested);
	if (index < cores->count)
		insula_monitor_core_nmi(&cores->core[index]);
}

int insula_node_interrupt(struct insula_node *node, u32 index, u32 vector)
{
	struct insula_shared_core_state *shared;
	bool nmi = vector == INSULA_VECTOR_NMI;
	u32 apic_id;

	if (index >= node->cpus_count)
		return -EINVAL;
	if (!nmi && !insula_processor_vector_valid(vector))
		return -EINVAL;
	if (node->state != INSULA_RUNNING)
		return -EALREADY;
	if (insula_node_shares_confined(node)) {
		if (nmi)
			return -EOPNOTSUPP;
		insula_monitor_share_interrupt(insula_node_share_id(node), vector);
		return 0;
	}
	apic_id = insula_processor_apic_id(node->cpus[index]);
	shared = insula_shared_core_find(apic_id);
	if (nmi && shared)
		return -EOPNOTSUPP;
	if (shared)
		insula_shared_core_interrupt(shared, vector);
	else if (nmi)
		send_nmi(node, index, apic_id);
	else
		insula_start_interrupt(apic_id, vector);
	return 0;
}
