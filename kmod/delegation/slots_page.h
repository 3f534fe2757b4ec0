/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_SLOTS_PAGE_H
#define INSULA_SLOTS_PAGE_H

#include <linux/kref.h>
#include <linux/mutex.h>
#include <linux/rwsem.h>

#include "arch/x86/doorbell.h"
#include "delegation/clock.h"
#include "delegation/shootdown.h"
#include "delegation/slots.h"

/* The first page that is given to processes. */
#define INSULA_SLOTS_FIRST_PAGE	(1 + INSULA_LWK_COUNTERS_PAGES + INSULA_LWK_CORES_PAGES)

/* Use of a page of the area. */
enum insula_slots_use {
	INSULA_PAGE_UNUSED,
	INSULA_PAGE_PROCESS,
	INSULA_PAGE_MAY_MAP,
	INSULA_PAGE_SLOTS,
};

/* This side's state of a page of slots. Allocated on first use, and kept. */
struct insula_slot_page {
	struct insula_syscall_slot slot[INSULA_LWK_SLOTS_PER_PAGE];
};

/* A delegation area, for its implementation only: slots.c, slots_page.c. */
struct insula_slots {
	struct kref refs;
	struct insula_slots_place place;
	struct insula_lwk_delegation *header;
	bool disconnected;		/* the node has ended */
	struct insula_doorbell doorbell;
	wait_queue_head_t answers;
	struct insula_clock clock;
	struct insula_ringable *ringable;
	struct insula_shootdown shootdown;
	struct mutex lock;		/* all below, and writes to pages of processes */
	struct rw_semaphore users_lock;	/* users; nests inside `lock` */
	struct list_head users;
	u8 use[INSULA_LWK_PAGES_MAX];	/* enum insula_slots_use */
	u8 state[INSULA_LWK_PAGES_MAX];	/* enum insula_lwk_base_state: not in node's memory */
	u16 process_of[INSULA_LWK_PAGES_MAX];
	/* In interrupt read unlocked: */
	struct insula_slot_page *slot_pages[INSULA_LWK_PAGES_MAX];
};

/* Address of a page. */
static inline void *insula_slots_page_address(const struct insula_slots *slots, u32 page)
{
	return (void *)slots->header + page * PAGE_SIZE;
}

/* Whether it is a page of slots of that process. */
bool insula_slots_page_is_of(const struct insula_slots *slots, u64 page, u32 process);

/* Assign a page to a process. Lock held. */
void insula_slots_page_assign(struct insula_slots *slots, u32 page, enum insula_slots_use use,
			      u32 process);

/* Free the pages of reaped processes. Lock held. */
void insula_slots_pages_reclaim(struct insula_slots *slots);

/* First of `count` consecutive unused pages, cleared; 0 if there are none. Lock held. */
u32 insula_slots_pages_find(struct insula_slots *slots, u32 count);

#endif
