/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_CORE_H
#define INSULA_CORE_H

#include "insula_module.h"

int insula_cores_init(void);
void insula_cores_exit(void);

/*
 * Take cores from the base or the pool for node `node`, all or none, and park them: see
 * insula_start_park(). -EINVAL: core 0, no such core or one twice. -EBUSY: one is taken
 * already. -ENODEV: one is offline. -EIO: one cannot be parked. -ESHUTDOWN: the base goes down.
 */
int insula_cores_take(const u32 *cpus, u32 count, u32 node);

/*
 * Have the base share a core, which stays online, with node `node`: it gets at most `percent` of
 * the core's time, by NMIs also while the base has interrupts off. Errors as of
 * insula_cores_take() and insula_shared_core_create().
 */
int insula_cores_share(u32 cpu, u32 percent, bool by_nmi, u32 node);

/*
 * Share the core of a confined node with node `node`, which gets at most `percent` of its time.
 * Errors as of insula_monitor_share_create(), which it is. The other function ends that: a core
 * that the confined node has returned meanwhile is returned then.
 */
int insula_cores_share_confined(u32 cpu, u32 percent, u32 node);
void insula_cores_unshare_confined(u32 cpu);

/* Whether all are valid numbers of cores that nodes may have. */
bool insula_cores_are_takable(const u32 *cpus, u32 count);

/*
 * Reset cores and wait until all are parked. Sleeps. -EIO if one is not (in VMX operation INIT
 * is blocked): then all that it can access must never be reused.
 */
int insula_cores_park(const u32 *cpus, u32 count);

/*
 * Return parked cores, each to where it came from. The caller has removed them from all sets of
 * ringable cores. Sleeps.
 */
void insula_cores_give(const u32 *cpus, u32 count);

/* Reset cores without waiting. Any context. */
void insula_cores_reset(const u32 *cpus, u32 count);

/*
 * The base goes down: forbid taking, returning and starting of cores. Operations in progress
 * may still finish, up to the end of an RCU grace period. Any context.
 */
void insula_cores_close(void);

/* After that: reset all cores of nodes and of the pool, without locks. Any context. */
void insula_cores_reset_all(void);

/* The same, after parking those of nodes. Sleeps. */
void insula_cores_park_all(void);

/* Take cores for the pool, all or none; return all free ones to the base. */
int insula_cores_reserve(const u32 *cpus, u32 count);
int insula_cores_release(void);

/* Whether any core is taken. */
bool insula_cores_any_taken(void);

/* Fill at most `capacity` entries in user space; *count: number of cores. */
int insula_cores_list(u64 to, u32 capacity, u32 *count);

#endif
