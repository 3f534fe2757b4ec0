/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_CORE_H
#define INSULA_CORE_H

#include "insula_module.h"

int insula_cores_init(void);
void insula_cores_exit(void);

/*
 * Take cores from the base or the pool for node `node`, all or none, and park them:
 * see insula_start_settle(). -EINVAL: core 0, no such core or one twice. -EBUSY: one is
 * taken already. -ENODEV: one is offline. -EIO: one does not obey. -ESHUTDOWN: the base
 * goes down.
 */
int insula_cores_take(const u32 *cpus, u32 count, u32 node);

/* Whether these are numbers of cores that nodes may ever have: before anything is done by them. */
bool insula_cores_are_takable(const u32 *cpus, u32 count);

/*
 * Reset cores and wait until none executes anything any more. Sleeps. -EIO if one
 * does not obey (one in VMX operation holds an INIT back): whatever it can reach
 * must then not be used again.
 */
int insula_cores_settle(const u32 *cpus, u32 count);

/*
 * Give cores that have been settled back, each to where it came from. Whose doorbells
 * they had may not be rung there any more: that has been seen to before. Sleeps.
 */
void insula_cores_give(const u32 *cpus, u32 count);

/* Reset cores and no more. Any context. */
void insula_cores_reset(const u32 *cpus, u32 count);

/*
 * The base goes down: from now on no core is taken, given back or started for a node. Who
 * does so just now may still, up to the end of an RCU grace period. Any context.
 */
void insula_cores_close(void);

/* After that: reset the cores of all nodes and of the pool, whoever holds these. Any context. */
void insula_cores_reset_all(void);

/* The same, once those of nodes have obeyed. Sleeps. */
void insula_cores_settle_all(void);

/* Take cores for the pool, all or none; give back all that wait in it. */
int insula_cores_reserve(const u32 *cpus, u32 count);
int insula_cores_release(void);

/* Of a core that there is. */
u32 insula_core_apic_id(u32 cpu);

/* Whether any core is taken. */
bool insula_cores_any_taken(void);

/* Fill at most `capacity` entries for user space; *count: cores there are. */
int insula_cores_list(u64 to, u32 capacity, u32 *count);

#endif
