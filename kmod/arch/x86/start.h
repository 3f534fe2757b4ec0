/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_START_H
#define INSULA_START_H

#include <linux/types.h>

/* Where and how a core begins. Physical addresses; see insula_node_start. */
struct insula_entry {
	u64 address;
	u64 page_table;
	u64 argument;
};

/* Prepare the trampoline page; after insula_low_init(). */
int insula_start_init(void);
void insula_start_exit(void);

/* Physical address of the trampoline page. */
phys_addr_t insula_start_trampoline(void);

/*
 * Reset a core to where it waits for a start-up IPI, whatever it does now. Any
 * context. The caller owns the core.
 */
void insula_start_reset(u32 apic_id);

/*
 * Reset a core and wait until it has left what it executed, so that the memory that
 * this lies in can be used anew. An INIT is only a request: it says nothing of when
 * it is obeyed. The core is parked in the trampoline page then, where it takes machine
 * checks. -ETIMEDOUT if it does not answer. Sleeps.
 */
int insula_start_settle(u32 apic_id);

/*
 * Start a core that insula_start_settle() has parked. On success *tsc is the time
 * stamp at the jump. -ETIMEDOUT if it did not get there, -ESHUTDOWN if that has been
 * forbidden: it is reset again.
 */
int insula_start_core(u32 apic_id, const struct insula_entry *entry, u64 *tsc);

/*
 * Let no core be started any more. One that is being started may have been still, up to
 * the end of an RCU grace period. Any context.
 */
void insula_start_forbid(void);

/* Send a fixed interrupt to a core that runs. Any context. */
void insula_start_interrupt(u32 apic_id, u8 vector);

/* Send a non-maskable interrupt to a core that runs. Any context. */
void insula_start_nmi(u32 apic_id);

#endif
