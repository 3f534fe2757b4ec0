/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_MONITOR_SHARE_H
#define INSULA_MONITOR_SHARE_H

#include <linux/bits.h>
#include <linux/types.h>

struct file;
struct insula_entry;

/*
 * In the place of a core's APIC id: the lightweight kernel that shares the core with a confined
 * node. insula_start_*() (start.h) and a node's ringable doorbells (doorbell.h) know it. In a
 * copy of a node, bit 31 is INSULA_DOORBELL_FOREIGN.
 */
#define INSULA_MONITOR_SHARE_ID	BIT(30)

/*
 * Prepare to share the core of a confined node that runs, by its monitor, with a kernel that gets
 * at most `percent` of its time. -ENODEV: no such node has it, or the node's kernel has not started
 * it. -EBUSY: it is shared already, or too many are. -EOPNOTSUPP: what is in the way is logged.
 * Sleeps.
 */
int insula_monitor_share_create(u32 cpu, u32 percent);

/* End that; the kernel has been stopped. Sleeps. */
void insula_monitor_share_destroy(u32 cpu);

/*
 * Like insula_start_core(). -EHOSTDOWN: the node that had the core has ended. -ETIMEDOUT: the
 * monitor does not answer, or the node's kernel has not enabled its extended registers.
 */
int insula_monitor_share_start(u32 apic_id, const struct insula_entry *entry, u64 *tsc);

/* Have the kernel be entered no more. Any context. */
void insula_monitor_share_close(u32 apic_id);

/* Close it and wait until it runs no more. -ETIMEDOUT. Sleeps. */
int insula_monitor_share_stop(u32 apic_id);

/* Ring the kernel. Any context, inside an RCU read-side critical section. */
void insula_monitor_share_ring(u32 apic_id);

/* Interrupt the kernel by one of its own vectors. Any context, with its node's lock held. */
void insula_monitor_share_interrupt(u32 apic_id, u8 vector);

/*
 * The node that has the core ends, or returns it. False: it can be reset. Else a kernel goes on
 * there, and only the node's kernel is to be executed no more. Any context.
 */
bool insula_monitor_share_orphan(u32 apic_id);

/* After that: wait until it is not. False: the core is to be reset after all. Sleeps. */
bool insula_monitor_share_wait_orphan(u32 apic_id);

/* Whether the core is an orphan's: not to be returned before that has ended. Any context. */
bool insula_monitor_share_is_orphan(u32 apic_id);

/* The core has been reset and parked, and a kernel there with it. Sleeps. */
void insula_monitor_share_parked(u32 apic_id);

/* Whether a kernel uses the memory of a monitor, which is thus not to be cleared. Sleeps. */
bool insula_monitor_share_uses(const struct file *memory);

#endif
