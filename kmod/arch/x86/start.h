/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_START_H
#define INSULA_START_H

#include <linux/types.h>

/* Initial state of a core. Physical addresses; see struct insula_node_start. */
struct insula_entry {
	u64 address;
	u64 page_table;
	u64 argument;
};

/* Prepare the trampoline page; after insula_lowmem_init(). */
int insula_start_init(void);
void insula_start_exit(void);

/* Physical address of the trampoline page. */
phys_addr_t insula_start_trampoline(void);

/*
 * Of a core that this kernel shares with a node's (shared_core.h), these three affect the node's
 * kernel alone: it is left, and entered. So they do, by INSULA_MONITOR_SHARE_ID | apic_id, of a
 * core that a confined node shares with a lightweight kernel. By its plain id such a core is not
 * reset while that kernel runs: the confined node's is executed no more (monitor_share.h).
 *
 * Reset a core: it then waits for a start-up IPI. Does not wait for the reset. The caller owns
 * the core. Any context.
 */
void insula_start_reset(u32 apic_id);

/*
 * Reset a core and wait until it no longer executes its former code, so that the memory can be
 * reused: an INIT alone gives no confirmation. The core is then parked in the trampoline page,
 * where it handles machine checks. -ETIMEDOUT if it does not get there. Sleeps.
 */
int insula_start_park(u32 apic_id);

/* Reset cores at once, then park each. Whether all are parked. Sleeps. */
bool insula_start_park_all(const u32 *apic_ids, u32 count);

/*
 * Start a parked core. On success *tsc is the time stamp counter at the jump. -ETIMEDOUT: it did
 * not get there. -ESHUTDOWN: starting is forbidden. On an error it is reset again.
 */
int insula_start_core(u32 apic_id, const struct insula_entry *entry, u64 *tsc);

/*
 * Forbid starting of cores. Starts in progress may still succeed, up to the end of an RCU grace
 * period. Any context.
 */
void insula_start_forbid(void);

/* Send a fixed interrupt to a running core. Any context. */
void insula_start_interrupt(u32 apic_id, u8 vector);

/* Send an NMI to a running core. Any context. */
void insula_start_nmi(u32 apic_id);

/*
 * For an NMI handler that sends interrupts, or has another kernel do so: what it has interrupted
 * may be about to send one, too. The destination that this may have set by then.
 */
u32 insula_start_save_destination(void);
void insula_start_restore_destination(u32 destination);

#endif
