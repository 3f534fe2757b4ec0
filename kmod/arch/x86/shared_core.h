/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_SHARED_CORE_STATE_H
#define INSULA_SHARED_CORE_STATE_H

#include <linux/types.h>

struct insula_entry;
struct insula_shared_core_state;

/*
 * Share an online core, which must not go offline meanwhile, with a kernel that gets at most
 * `percent` of its time, and is entered by interrupts, or by NMIs also while this kernel has
 * interrupts off. -EBUSY: too many are shared. -EOPNOTSUPP: see insula_core_switch_supported() and
 * insula_shared_core_nmi_init(). Sleeps.
 */
int insula_shared_core_create(u32 cpu, u32 percent, bool by_nmi);

/* End that; the kernel has been stopped. Sleeps, by NMIs until the core has interrupts on. */
void insula_shared_core_destroy(u32 cpu);

/* Find a core that is shared, by the id of its APIC; NULL if it is not. Any context. */
struct insula_shared_core_state *insula_shared_core_find(u32 apic_id);

/* Like insula_start_core(): -ETIMEDOUT if this kernel has interrupts off there for too long. */
int insula_shared_core_start(struct insula_shared_core_state *core,
			     const struct insula_entry *entry, u64 *tsc);

/* Have the kernel not be entered any more, and left soon. Any context. */
void insula_shared_core_close(struct insula_shared_core_state *core);

/* Close it and wait until the kernel has been left. -ETIMEDOUT if it does not leave. Sleeps. */
int insula_shared_core_stop(struct insula_shared_core_state *core);

/*
 * For a base that goes down: no kernel is entered any more, and the next NMI ends one that runs.
 * Takes no locks. Any context.
 */
void insula_shared_cores_abandon(void);

/*
 * Ring a doorbell of a kernel that is entered by NMIs, or, by INSULA_MONITOR_SHARE_ID | apic_id
 * (monitor_share.h), by a monitor. False: it is none of such a kernel. Any context, inside an RCU
 * read-side critical section.
 */
bool insula_shared_core_ring(u32 apic_id, u8 vector);

/* Interrupt the kernel by one of its own vectors. Any context. */
void insula_shared_core_interrupt(struct insula_shared_core_state *core, u8 vector);

#endif
