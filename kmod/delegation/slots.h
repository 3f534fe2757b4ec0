/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_SLOTS_H
#define INSULA_SLOTS_H

#include <linux/fs.h>
#include <linux/list.h>

#include "delegation/slot.h"
#include "insula_lwk.h"
#include "insula_module.h"

/*
 * Delegation area of a node: its pages, its syscall slots and their waiters, and its doorbell.
 * Protocol: insula_lwk.h. Mirrors hold references, so it may outlive the node.
 */
struct insula_slots;

struct insula_nested_table;
struct insula_node;
struct insula_ringable;

/* A user that maps memory of the node. */
struct insula_slots_user {
	struct list_head link;
	u32 process;
	/* The node has ended: unmap all of its memory. Sleeps. */
	void (*disconnected)(struct insula_slots_user *user);
};

/* Location of an area. */
struct insula_slots_place {
	phys_addr_t start;
	u32 pages;
	struct file *memory;	/* the node's, held by the area */
	struct insula_node *node;	/* valid until insula_slots_disconnect() */
	struct insula_nested_table *nested;	/* of a confined node, held here; else NULL */
	u64 *permit;			/* of the area's doorbell, as long as that; or NULL */
};

/* Initialize an area. Takes ownership of `ringable` on success. ERR_PTR(-ENOMEM). */
struct insula_slots *insula_slots_create(const struct insula_slots_place *place,
					 struct insula_ringable *ringable);
void insula_slots_get(struct insula_slots *slots);
void insula_slots_put(struct insula_slots *slots);

/* Have calls never announced to one core, which must not be the only one. Sleeps. */
int insula_slots_keep_off(struct insula_slots *slots, u32 cpu);

/* The node has ended: stop using its memory, wake all waiters. NULL is allowed. */
void insula_slots_disconnect(struct insula_slots *slots);
bool insula_slots_disconnected(const struct insula_slots *slots);

/* Its cores are parked, or one of them could not be (`lost`). NULL is allowed. */
void insula_slots_end(struct insula_slots *slots, bool lost);

/*
 * Where tasks wait for what the node's kernel answers in pages of processes; woken by each ring,
 * and when the node has ended.
 */
wait_queue_head_t *insula_slots_answers(struct insula_slots *slots);

/* Whether the node's kernel accepts programs. */
bool insula_slots_ready(const struct insula_slots *slots);

struct file *insula_slots_memory(const struct insula_slots *slots);

/* The nested page table of a confined node; else NULL. */
struct insula_nested_table *insula_slots_nested(const struct insula_slots *slots);

/*
 * Allocate a process's two pages, cleared: the number of the first. -ENOSPC: none are free.
 * -EPIPE: the node has ended.
 */
int insula_slots_add_process(struct insula_slots *slots, struct insula_slots_user *user);
/* Set STARTED: the process's pages are filled in, the node's kernel may run it. */
void insula_slots_start_process(struct insula_slots *slots, u32 process);
/* Set UNMAPPED, and detach the waiters of its slots. */
void insula_slots_exit_process(struct insula_slots *slots, u32 process);
/* Set EXITED before that: the proxy's threads begin to exit. */
void insula_slots_begin_exit(struct insula_slots *slots, u32 process);
/*
 * Wait until none of an exited process's threads runs any more, for a limited time. Whether that
 * is so.
 */
bool insula_slots_await_stop(struct insula_slots *slots, u32 process);
/* Set QUIESCED: its pages are reclaimed once the node has set REAPED. */
void insula_slots_release_process(struct insula_slots *slots, u32 process,
				  struct insula_slots_user *user);

/*
 * Call `action` for each user whose process shares the page table of this one. Sleeps; the
 * caller holds no area's lock, and `action` writes no page of a process.
 */
void insula_slots_visit_sharers(struct insula_slots *slots, u32 process,
				void (*action)(struct insula_slots_user *user, void *data),
				void *data);

/* A process's pages. Write them by the functions below only. */
struct insula_lwk_process *insula_slots_process(struct insula_slots *slots, u32 process);
struct insula_lwk_may_map *insula_slots_may_map(struct insula_slots *slots, u32 process);

/* Write a word of a process's pages, unless the node has ended. */
void insula_slots_write(struct insula_slots *slots, u64 *word, u64 value);

/*
 * Queue a signal, without notifying the node's kernel. False: the queue is full. With `at_once`
 * a full queue loses its siginfo instead.
 */
bool insula_slots_signal(struct insula_slots *slots, u32 process,
			 const struct insula_lwk_signal *signal, bool at_once);

/* Notify the node's kernel of a change to a process's pages. */
void insula_slots_notify(struct insula_slots *slots, u32 process);

/* Allocate a cleared slot for a process. ERR_PTR(-ENOSPC). */
struct insula_syscall_slot *insula_slots_alloc(struct insula_slots *slots, u32 process);

/* Allocated slot of that process by its index, or NULL. */
struct insula_syscall_slot *insula_slots_find(struct insula_slots *slots, u32 process, u64 index);

/* Physical address of a page of slots of that process; 0 if it is none. */
phys_addr_t insula_slots_page(struct insula_slots *slots, u32 process, u64 page);

/* Free a slot. */
void insula_slots_free(struct insula_slots *slots, struct insula_syscall_slot *slot);

/* Ring the doorbell that the node publishes at `place`, if any. */
void insula_slots_ring(struct insula_slots *slots, const u64 *place);

#endif
