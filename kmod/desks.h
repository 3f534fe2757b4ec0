/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_DESKS_H
#define INSULA_DESKS_H

#include <linux/fs.h>
#include <linux/list.h>

#include "channel.h"
#include "insula_lwk.h"
#include "insula_module.h"
#include "seat.h"

/*
 * The delegation area of a node: its pages, its desks and who sits there, and its
 * doorbell. The protocol is told in insula_lwk.h. Spaces hold it, so it outlives the node.
 */
struct insula_desks;

/* Whoever has mapped something of the node's. */
struct insula_desks_user {
	struct list_head link;
	u32 process;
	/* The node is no more: nothing of it may stay mapped. Sleeps. */
	void (*hung_up)(struct insula_desks_user *user);
};

/* Where an area lies. */
struct insula_desks_place {
	phys_addr_t start;
	u32 pages;
	struct file *memory;	/* the node's, held as long as the area is */
};

/* Write the header of an area. Takes `ringable` over, on success only. ERR_PTR(-ENOMEM). */
struct insula_desks *insula_desks_create(const struct insula_desks_place *place,
					 struct insula_ringable *ringable);
void insula_desks_get(struct insula_desks *desks);
void insula_desks_put(struct insula_desks *desks);

/* The node is no more: its memory is touched no more, who waits is woken. NULL is none. */
void insula_desks_hang_up(struct insula_desks *desks);
bool insula_desks_gone(const struct insula_desks *desks);

/* Whether the node's kernel takes programs. */
bool insula_desks_ready(const struct insula_desks *desks);

struct file *insula_desks_memory(const struct insula_desks *desks);

/*
 * A process's two pages, cleared, for a user: the number of the first. -ENOSPC: there are
 * none. -EPIPE: the node is no more.
 */
int insula_desks_add_process(struct insula_desks *desks, struct insula_desks_user *user);
/* All that is written of it is there: the node's kernel may run it. */
void insula_desks_begin_process(struct insula_desks *desks, u32 process);
/* It has ended: nobody sits at its desks. */
void insula_desks_end_process(struct insula_desks *desks, u32 process);
/* And holds nothing: its pages go back when the node says so as well. */
void insula_desks_drop_process(struct insula_desks *desks, u32 process,
			       struct insula_desks_user *user);

/*
 * Do something for each user whose process has the page table of this one. Sleeps; the
 * lock of no area is held, and `deed` writes no page of a process.
 */
void insula_desks_each_kin(struct insula_desks *desks, u32 process,
			   void (*deed)(struct insula_desks_user *user, void *data), void *data);

/* Its pages, to be read, and to be written by the functions below. */
struct insula_lwk_process *insula_desks_process(struct insula_desks *desks, u32 process);
struct insula_lwk_reach *insula_desks_reach(struct insula_desks *desks, u32 process);

/* Write a word of a process's pages, unless the node is no more. */
void insula_desks_write(struct insula_desks *desks, u64 *word, u64 value);

/*
 * Queue a signal for a process's kernel, which is not called. False: the queue is full. With
 * `at_once`, its number alone is told then.
 */
bool insula_desks_signal(struct insula_desks *desks, u32 process,
			 const struct insula_lwk_signal *signal, bool at_once);

/* Have the node's kernel look at a process. */
void insula_desks_call_attention(struct insula_desks *desks, u32 process);

/* A free desk of a process, cleared, taken. ERR_PTR(-ENOSPC). */
struct insula_seat *insula_desks_take_seat(struct insula_desks *desks, u32 process);

/* One that is taken by that process, or NULL. */
struct insula_seat *insula_desks_seat(struct insula_desks *desks, u32 process, u64 index);

/* Physical address of a page of desks of that process; 0 if it is none. */
phys_addr_t insula_desks_page(struct insula_desks *desks, u32 process, u64 page);

/* It is free, and nobody's. */
void insula_desks_leave_seat(struct insula_desks *desks, struct insula_seat *seat);

/* Ring the node by a word of its own, if that says anything. */
void insula_desks_ring(struct insula_desks *desks, const u64 *place);

#endif
