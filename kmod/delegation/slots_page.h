/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_SLOTS_PAGE_H
#define INSULA_SLOTS_PAGE_H

#include <linux/bitmap.h>
#include <linux/kref.h>
#include <linux/mutex.h>
#include <linux/rwsem.h>

#include "arch/x86/doorbell.h"
#include "delegation/clock.h"
#include "delegation/shootdown.h"
#include "delegation/slots.h"

/* The first page that is given to processes. */
#define INSULA_SLOTS_FIRST_PAGE	(1 + INSULA_LWK_COUNTERS_PAGES + INSULA_LWK_CORES_PAGES + \
				 INSULA_LWK_MAPS_PAGES)

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

/* A page of the area. */
struct insula_area_page {
	u8 use;			/* enum insula_slots_use */
	u8 state;		/* of a process, enum insula_lwk_base_state: not in node's memory */
	u16 process_of;
	u16 next_slots;		/* next page of slots of its process; 0: this is the last */
	struct insula_slot_page *slots;	/* read unlocked in interrupt */
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
	DECLARE_BITMAP(used, INSULA_LWK_PAGES_MAX);
	DECLARE_BITMAP(quiesced, INSULA_LWK_PAGES_MAX);	/* processes to be reaped */
	struct insula_lwk_maps *maps;
	struct insula_area_page page[];
};

/* Address of a page. */
static inline void *insula_slots_page_address(const struct insula_slots *slots, u32 page)
{
	return (void *)slots->header + page * PAGE_SIZE;
}

/* First page of slots of a process; 0: it has none. Lock held. */
static inline u32 insula_slots_first_page(const struct insula_slots *slots, u32 process)
{
	return slots->page[process].next_slots;
}

/* Whether it is a page of slots of that process. */
bool insula_slots_page_is_of(const struct insula_slots *slots, u64 page, u32 process);

/* Allocate the cleared pages of a process: the number of the first; 0: none are free. Lock held. */
u32 insula_slots_page_add_process(struct insula_slots *slots);

#endif
