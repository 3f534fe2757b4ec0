/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_NODE_STATE_H
#define INSULA_NODE_STATE_H

#include <linux/kref.h>
#include <linux/mutex.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "insula_module.h"
#include "node/description.h"
#include "node/exit_poll.h"
#include "node/monitor.h"
#include "node/registry.h"

struct file;
struct insula_area;
struct insula_slots;
struct insula_grant_channel;

/* A node. Its states are described in node_state.c. */
struct insula_node {
	struct insula_named named;
	struct kref refs;		/* descriptors, registry once started, pending reaping */
	wait_queue_head_t changes;	/* of state, retired and memory, for poll() */
	struct mutex lock;		/* all below */
	struct file *memory;		/* NULL before it is assembled, and once removed */
	struct file *shared;		/* memory shared with other nodes, or NULL */
	struct insula_node_vmm vmm;	/* its monitor, if it is confined */
	struct insula_description_data *description;
	u32 id;
	u32 cpus_count;
	u32 *cpus;
	bool has_cores;
	u32 core_share;			/* percent of a core that it shares, or 0 */
	u32 share_by;			/* INSULA_SHARE_BY_* */
	struct list_head devices;	/* see device.h */
	bool lost;			/* leaked: a core could not be stopped */
	enum insula_state state;
	enum insula_reason reason;	/* of its last end */
	bool retired;			/* its (next) end is final */
	struct file *owner;		/* descriptor that owns it, until it runs */
	struct file *supervisor;	/* supervising descriptor, or NULL */
	u32 keep_cpus;			/* reasons for which it keeps its cores, 1 << reason */
	bool unresponsive;		/* as reported by its supervisor */
	bool paused;			/* running, but its monitor executes it no more */
	struct insula_area *area;	/* its channels, or NULL */
	struct insula_slots *slots;	/* its delegation area, or NULL */
	struct insula_grant_channel *grants;	/* grants to it in this run, or NULL */
	struct insula_node_start start;
	u32 chunks_started;		/* number of its memory's chunks at its start */
	u64 starts;
	u64 started_ns, ended_ns;
	u64 start_tsc, entry_tsc;
	struct insula_exit_poll exit_poll;
	struct work_struct reap;
	enum insula_reason exit_reason;	/* by exit_poll, for `reap` */
};

int insula_node_state_init(void);
void insula_node_state_exit(void);

/* Allocate a node without resources, with one reference. */
struct insula_node *insula_node_new(void);
void insula_node_put(struct insula_node *node);

/* It did not release memory of the base in time, and its cores were reset: end it. */
void insula_node_unresponsive(struct insula_node *node);

/* Wake waiters in poll(). */
void insula_node_changed(struct insula_node *node);

/*
 * Whether this base allows nodes to be created and started. -EPERM: the kernel is locked down.
 * insula_node_start() and insula_node_recreate() check it themselves.
 */
int insula_node_may_start(void);

/* Whether it shares the core of a confined node. */
bool insula_node_shares_confined(const struct insula_node *node);

/* That core's APIC id, as insula_start_*() and its doorbells take it (monitor_share.h). */
u32 insula_node_share_id(const struct insula_node *node);

/* Take its cores, or a share of one; errors as of insula_cores_take() and _share(). Lock held. */
int insula_node_take_cores(struct insula_node *node);

/* Lock a node, unless it has been removed: -ENODEV. -EINTR. */
int insula_node_lock(struct insula_node *node);

/*
 * All of these with the lock held, on a node that is not removed. Their errors are those of the
 * ioctls of the same name.
 */
int insula_node_start(struct insula_node *node, const struct insula_node_start *start);
int insula_node_stop(struct insula_node *node, enum insula_reason reason);
int insula_node_supervise(struct insula_node *node, struct file *by,
			  const struct insula_node_supervise *supervise);
void insula_node_retire(struct insula_node *node);

/* Takes ownership of the description on success. */
int insula_node_recreate(struct insula_node *node, struct file *by, u32 flags,
			 struct insula_description_data *description);

/*
 * A descriptor of the node is being closed. Returns whether the node must be removed: it
 * belonged to that descriptor and was never started.
 */
bool insula_node_file_closed(struct insula_node *node, struct file *file);

/* The base goes down: stop the node, keep its cores. Lock held. */
void insula_node_base_down(struct insula_node *node);

#endif
