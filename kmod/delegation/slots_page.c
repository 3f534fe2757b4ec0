// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pages of a delegation area, and the syscall slots in them: who has them, and allocation.
 */
#include "delegation/slots_page.h"

#include <linux/bitmap.h>
#include <linux/err.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/string.h>

static void slots_page_assign(struct insula_slots *slots, u32 page, enum insula_slots_use use,
			      u32 process)
{
	__assign_bit(page, slots->used, use != INSULA_PAGE_UNUSED);
	WRITE_ONCE(slots->page[page].use, use);
	WRITE_ONCE(slots->page[page].process_of, process);
	WRITE_ONCE(slots->maps->process_of[page], process);
}

/* Whether both sides are done with a process. */
static bool slots_page_is_reaped(struct insula_slots *slots, u32 process)
{
	struct insula_lwk_process *shared = insula_slots_process(slots, process);

	return READ_ONCE(shared->lwk_state) == INSULA_LWK_REAPED;
}

static void slots_page_free_process(struct insula_slots *slots, u32 process)
{
	u32 page = insula_slots_first_page(slots, process), next;

	for (; page; page = next) {
		next = slots->page[page].next_slots;
		slots_page_assign(slots, page, INSULA_PAGE_UNUSED, 0);
	}
	slots_page_assign(slots, process, INSULA_PAGE_UNUSED, 0);
	slots_page_assign(slots, process + 1, INSULA_PAGE_UNUSED, 0);
	__clear_bit(process, slots->quiesced);
}

/* Free the pages of reaped processes. */
static void slots_page_reclaim(struct insula_slots *slots)
{
	unsigned long process;

	for_each_set_bit(process, slots->quiesced, slots->place.pages)
		if (slots_page_is_reaped(slots, process))
			slots_page_free_process(slots, process);
}

/* First of `count` consecutive unused pages, cleared; 0 if there are none. */
static u32 slots_page_find(struct insula_slots *slots, u32 count)
{
	unsigned long page;

	lockdep_assert_held(&slots->lock);
	slots_page_reclaim(slots);
	page = bitmap_find_next_zero_area(slots->used, slots->place.pages,
					  INSULA_SLOTS_FIRST_PAGE, count, 0);
	if (page >= slots->place.pages)
		return 0;
	memset(insula_slots_page_address(slots, page), 0, count * PAGE_SIZE);
	return page;
}

u32 insula_slots_page_add_process(struct insula_slots *slots)
{
	u32 page = slots_page_find(slots, 2);

	if (!page)
		return 0;
	slots_page_assign(slots, page, INSULA_PAGE_PROCESS, page);
	slots_page_assign(slots, page + 1, INSULA_PAGE_MAY_MAP, page);
	slots->page[page].state = INSULA_LWK_NONE;
	slots->page[page].next_slots = 0;
	return page;
}

static struct insula_slot_page *slots_page_new(struct insula_slots *slots, u32 page)
{
	struct insula_lwk_syscall_slot *shared = insula_slots_page_address(slots, page);
	struct insula_slot_page *slot_page = kzalloc(sizeof(*slot_page), GFP_KERNEL);
	u32 i;

	for (i = 0; slot_page && i < INSULA_LWK_SLOTS_PER_PAGE; i++)
		insula_slot_init(&slot_page->slot[i], slots, &shared[i],
				 page * INSULA_LWK_SLOTS_PER_PAGE + i);
	return slot_page;
}

bool insula_slots_page_is_of(const struct insula_slots *slots, u64 page, u32 process)
{
	return page < slots->place.pages &&
	       READ_ONCE(slots->page[page].use) == INSULA_PAGE_SLOTS &&
	       READ_ONCE(slots->page[page].process_of) == process;
}

/* Assign a new page of slots to a process; 0 if there is none. Lock held. */
static u32 slots_page_add(struct insula_slots *slots, u32 process)
{
	u32 page = slots_page_find(slots, 1);

	if (!page)
		return 0;
	if (!slots->page[page].slots) {
		struct insula_slot_page *slot_page = slots_page_new(slots, page);

		if (!slot_page)
			return 0;
		smp_store_release(&slots->page[page].slots, slot_page); /* its content */
	}
	slots_page_assign(slots, page, INSULA_PAGE_SLOTS, process);
	slots->page[page].next_slots = slots->page[process].next_slots;
	slots->page[process].next_slots = page;
	return page;
}

/* Allocate a free slot of a page, or NULL. Lock held. */
static struct insula_syscall_slot *slots_page_alloc(struct insula_slots *slots, u32 page)
{
	struct insula_syscall_slot *slot = slots->page[page].slots->slot;
	u32 i;

	lockdep_assert_held(&slots->lock);
	for (i = 0; i < INSULA_LWK_SLOTS_PER_PAGE; i++, slot++) {
		if (slot->taken || insula_slots_disconnected(slots))
			continue;
		spin_lock_irq(&slot->lock);
		slot->cancel = false;
		spin_unlock_irq(&slot->lock);
		WRITE_ONCE(slot->taken, true);
		memset(slot->shared, 0, sizeof(*slot->shared));
		return slot;
	}
	return NULL;
}

struct insula_syscall_slot *insula_slots_alloc(struct insula_slots *slots, u32 process)
{
	struct insula_syscall_slot *slot = NULL;
	u32 page;

	mutex_lock(&slots->lock);
	page = insula_slots_first_page(slots, process);
	for (; page && !slot; page = slots->page[page].next_slots)
		slot = slots_page_alloc(slots, page);
	if (!slot && !insula_slots_disconnected(slots)) {
		page = slots_page_add(slots, process);
		if (page)
			slot = slots_page_alloc(slots, page);
	}
	mutex_unlock(&slots->lock);
	return slot ? slot : ERR_PTR(-ENOSPC);
}

struct insula_syscall_slot *insula_slots_find(struct insula_slots *slots, u32 process, u64 index)
{
	u64 page = index / INSULA_LWK_SLOTS_PER_PAGE;
	struct insula_syscall_slot *slot;

	if (!insula_slots_page_is_of(slots, page, process))
		return NULL;
	slot = &slots->page[page].slots->slot[index % INSULA_LWK_SLOTS_PER_PAGE];
	return READ_ONCE(slot->taken) ? slot : NULL;
}

phys_addr_t insula_slots_page(struct insula_slots *slots, u32 process, u64 page)
{
	return insula_slots_page_is_of(slots, page, process) ?
		slots->place.start + page * PAGE_SIZE : 0;
}
