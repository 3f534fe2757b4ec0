/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_LIFE_H
#define INSULA_LIFE_H

#include <linux/kref.h>
#include <linux/mutex.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "description.h"
#include "insula_module.h"
#include "registry.h"
#include "watch.h"

struct file;
struct insula_area;
struct insula_desks;
struct insula_lending;

/* A node. What its life consists of is told and done in life.c. */
struct insula_node {
	struct insula_named named;
	struct kref refs;		/* descriptors, registry once running, reaping */
	wait_queue_head_t changes;	/* of state, retired and memory, for poll() */
	struct mutex lock;		/* all below */
	struct file *memory;		/* NULL before it is put together, and when gone */
	struct file *shared;		/* what other nodes have as well, or NULL */
	struct insula_description_data *description;
	u32 id;
	u32 cpus_count;
	u32 *cpus;
	bool has_cores;
	struct list_head devices;	/* see device.h */
	bool lost;			/* all that it has, for good */
	enum insula_state state;
	enum insula_reason reason;	/* of its last end */
	bool retired;			/* no end of it is followed by a start */
	struct file *owner;		/* descriptor it belongs to, till it runs */
	struct file *supervisor;	/* descriptor that its cores are held for */
	u32 hold;			/* after ends for these reasons, 1 << reason */
	bool unresponsive;		/* so says its supervisor */
	struct insula_area *area;	/* of its channels, or NULL */
	struct insula_desks *desks;	/* of its programs' calls, or NULL */
	struct insula_lending *lending;	/* of what is lent to it in this life, or NULL */
	struct insula_node_start start;
	u32 chunks_started;		/* of its memory, that it was started with */
	u64 starts;
	u64 started_ns, ended_ns;
	u64 start_tsc, entry_tsc;
	struct insula_watch watch;
	struct work_struct reap;
	enum insula_reason seen;	/* by the watch, for reap */
};

int insula_life_init(void);
void insula_life_exit(void);

/* A node of nothing, with one reference. */
struct insula_node *insula_node_new(void);
void insula_node_put(struct insula_node *node);

/* In the life to which this belongs it kept what it was lent, and was reset for it: end it. */
void insula_node_unresponsive(struct insula_node *node, const struct insula_lending *lending);

/* Whoever waits for a change by poll() is to look. */
void insula_node_changed(struct insula_node *node);

/*
 * Whether this base lets nodes be made and started at all. -EPERM: it is locked down. The
 * calls below that begin one ask by themselves.
 */
int insula_node_may_begin(void);

/* Lock one that is still there. -ENODEV: it has been removed. -EINTR. */
int insula_node_lock(struct insula_node *node);

/*
 * All of these with the lock held, for a node that has memory. Their errors are
 * those of the calls of the same name.
 */
int insula_node_start(struct insula_node *node, const struct insula_node_start *start);
int insula_node_stop(struct insula_node *node, enum insula_reason reason);
int insula_node_supervise(struct insula_node *node, struct file *by,
			  const struct insula_node_supervise *supervise);
void insula_node_retire(struct insula_node *node);

/* Takes the description over, on success only. */
int insula_node_recreate(struct insula_node *node, struct file *by, u32 flags,
			 struct insula_description_data *description);

/*
 * A descriptor of the node is closed. Answers whether the node has to vanish: it
 * belonged to that descriptor and never ran.
 */
bool insula_node_leave(struct insula_node *node, struct file *file);

/* The base goes down: stop it, keep its cores. Lock held. */
void insula_node_base_down(struct insula_node *node);

#endif
