// SPDX-License-Identifier: GPL-2.0-only
/*
 * Base side of a delegation area: its processes, and the doorbell by which the node's kernel
 * wakes sleeping threads. Its pages are in slots_page.c, waiting at a slot is in slot.c.
 *
 * The node's bitmaps are not trusted: a bit has an effect only if its slot exists, and all it
 * does is to wake a thread that checks again.
 */
#include "delegation/slots.h"

#include <linux/bitmap.h>
#include <linux/bits.h>
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/file.h>
#include <linux/io.h>
#include <linux/jiffies.h>
#include <linux/kref.h>
#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/rwsem.h>
#include <linux/slab.h>

#include "arch/x86/doorbell.h"
#include "delegation/clock.h"
#include "delegation/slots_page.h"
#include "node/nested_table.h"

#define WORD_BITS	64
/* The node's kernel stops a program within microseconds, or after a pause of the machine. */
#define STOP_TIMEOUT	HZ
#define STOP_POLL_US	20

struct insula_lwk_process *insula_slots_process(struct insula_slots *slots, u32 process)
{
	return insula_slots_page_address(slots, process);
}

struct insula_lwk_may_map *insula_slots_may_map(struct insula_slots *slots, u32 process)
{
	return insula_slots_page_address(slots, process + 1);
}

struct file *insula_slots_memory(const struct insula_slots *slots)
{
	return slots->place.memory;
}

struct insula_nested_table *insula_slots_nested(const struct insula_slots *slots)
{
	return slots->place.nested;
}

bool insula_slots_disconnected(const struct insula_slots *slots)
{
	return READ_ONCE(slots->disconnected);
}

wait_queue_head_t *insula_slots_answers(struct insula_slots *slots)
{
	return &slots->answers;
}

bool insula_slots_ready(const struct insula_slots *slots)
{
	return READ_ONCE(slots->header->lwk_doorbell);
}

/* Slot of a bit in the node's bitmaps, or NULL. In interrupt. */
static struct insula_syscall_slot *slots_of_bit(struct insula_slots *slots, u32 index)
{
	u32 page = index / INSULA_LWK_SLOTS_PER_PAGE;
	struct insula_slot_page *slot_page;

	if (page >= slots->place.pages)
		return NULL;
	slot_page = smp_load_acquire(&slots->page[page].slots); /* its content */
	return slot_page ? &slot_page->slot[index % INSULA_LWK_SLOTS_PER_PAGE] : NULL;
}

/* Clear a word of a bitmap, and call `action` for each slot whose bit was set. In interrupt. */
static void slots_take_word(struct insula_slots *slots, u64 *bits, u32 word,
			    void (*action)(struct insula_syscall_slot *))
{
	u64 taken = xchg(&bits[word], 0);
	struct insula_syscall_slot *slot;

	for (; taken; taken &= taken - 1) {
		slot = slots_of_bit(slots, word * WORD_BITS + __ffs64(taken));
		if (slot)
			action(slot);
	}
}

/* The same for all words that the summary names. */
static void slots_take_bits(struct insula_slots *slots, u64 *summary, u64 *bits,
			    void (*action)(struct insula_syscall_slot *))
{
	u64 taken;
	u32 word;

	for (word = 0; word < ARRAY_SIZE(slots->header->wake_summary); word++) {
		if (!READ_ONCE(summary[word]))
			continue;
		for (taken = xchg(&summary[word], 0); taken; taken &= taken - 1)
			slots_take_word(slots, bits, word * WORD_BITS + __ffs64(taken), action);
	}
}

static void slots_rung(struct insula_doorbell *doorbell)
{
	struct insula_slots *slots = container_of(doorbell, struct insula_slots, doorbell);
	struct insula_lwk_delegation *header = slots->header;

	if (insula_slots_disconnected(slots))
		return;
	slots_take_bits(slots, header->wake_summary, slots->maps->wake_pending, insula_slot_wake);
	slots_take_bits(slots, header->cancel_summary, slots->maps->cancel_pending,
			insula_slot_cancel);
	if (wq_has_sleeper(&slots->answers))
		wake_up_all(&slots->answers);
}

static void slots_write_header(struct insula_slots *slots)
{
	struct insula_lwk_delegation *header = slots->header;

	header->magic = INSULA_LWK_MAGIC;
	header->revision = INSULA_LWK_REVISION;
	header->pages = slots->place.pages;
	insula_clock_start(&slots->clock, &header->clock);
	insula_doorbell_publish(&slots->doorbell, &header->base_doorbell);
}

struct insula_slots *insula_slots_create(const struct insula_slots_place *place,
					 struct insula_ringable *ringable)
{
	struct insula_slots *slots = kvzalloc(struct_size(slots, page, place->pages), GFP_KERNEL);
	int err;

	if (!slots)
		return ERR_PTR(-ENOMEM);
	kref_init(&slots->refs);
	mutex_init(&slots->lock);
	init_rwsem(&slots->users_lock);
	init_waitqueue_head(&slots->answers);
	INIT_LIST_HEAD(&slots->users);
	slots->place = *place;
	insula_shootdown_init(&slots->shootdown, place->node);
	slots->header = phys_to_virt(place->start);
	slots->maps = insula_slots_page_address(slots, INSULA_SLOTS_FIRST_PAGE -
						INSULA_LWK_MAPS_PAGES);
	slots->doorbell.rung = slots_rung;
	slots->doorbell.permit = place->permit;
	err = insula_doorbell_create(&slots->doorbell);
	if (err) {
		kvfree(slots);
		return ERR_PTR(err);
	}
	slots->ringable = ringable;
	get_file(place->memory);
	insula_nested_table_get(place->nested);
	/* A former run of the node may have left its cores' words, and pending bits. */
	memset(insula_slots_page_address(slots, 1 + INSULA_LWK_COUNTERS_PAGES), 0,
	       (INSULA_LWK_CORES_PAGES + INSULA_LWK_MAPS_PAGES) * PAGE_SIZE);
	slots_write_header(slots);
	return slots;
}

int insula_slots_keep_off(struct insula_slots *slots, u32 cpu)
{
	return insula_doorbell_keep_off(&slots->doorbell, cpu);
}

void insula_slots_get(struct insula_slots *slots)
{
	kref_get(&slots->refs);
}

static void slots_free_all(struct kref *refs)
{
	struct insula_slots *slots = container_of(refs, struct insula_slots, refs);
	u32 page;

	insula_doorbell_destroy(&slots->doorbell);
	insula_clock_stop(&slots->clock);
	for (page = 0; page < slots->place.pages; page++)
		kfree(slots->page[page].slots);
	fput(slots->place.memory);
	insula_nested_table_put(slots->place.nested);
	kfree(slots->ringable);
	kvfree(slots);
}

void insula_slots_put(struct insula_slots *slots)
{
	if (slots)
		kref_put(&slots->refs, slots_free_all);
}

static void slots_visit_page(struct insula_slots *slots, u32 page,
			     void (*action)(struct insula_syscall_slot *))
{
	struct insula_slot_page *slot_page = slots->page[page].slots;
	u32 place;

	for (place = 0; slot_page && place < INSULA_LWK_SLOTS_PER_PAGE; place++)
		action(&slot_page->slot[place]);
}

void insula_slots_disconnect(struct insula_slots *slots)
{
	struct insula_slots_user *user;
	u32 page;

	if (!slots || insula_slots_disconnected(slots))
		return;
	insula_doorbell_publish(&slots->doorbell, NULL);
	insula_clock_stop(&slots->clock);
	insula_shootdown_disconnect(&slots->shootdown);
	mutex_lock(&slots->lock);
	WRITE_ONCE(slots->disconnected, true);
	wake_up_all(&slots->answers);
	for (page = 0; page < slots->place.pages; page++)
		slots_visit_page(slots, page, insula_slot_disconnect);
	down_read(&slots->users_lock);
	list_for_each_entry(user, &slots->users, link)
		user->disconnected(user);
	up_read(&slots->users_lock);
	mutex_unlock(&slots->lock);
}

void insula_slots_ring(struct insula_slots *slots, const u64 *place)
{
	rcu_read_lock();
	if (!insula_slots_disconnected(slots))
		insula_doorbell_ring(place, slots->ringable);
	rcu_read_unlock();
}

void insula_slots_write(struct insula_slots *slots, u64 *word, u64 value)
{
	mutex_lock(&slots->lock);
	if (!insula_slots_disconnected(slots))
		smp_store_release(word, value); /* after all earlier writes */
	mutex_unlock(&slots->lock);
}

void insula_slots_notify(struct insula_slots *slots, u32 process)
{
	mutex_lock(&slots->lock);
	if (!insula_slots_disconnected(slots)) {
		set_bit(process, (unsigned long *)slots->maps->process_pending);
		set_bit(process / WORD_BITS, (unsigned long *)slots->header->process_summary);
		insula_slots_ring(slots, &slots->header->lwk_doorbell);
	}
	mutex_unlock(&slots->lock);
}

/* Set a process's state here and in the area in one step: its pages may be reclaimed after it. */
static void slots_set_state(struct insula_slots *slots, u32 process,
			    enum insula_lwk_base_state state)
{
	u64 *word = &insula_slots_process(slots, process)->base_state;

	mutex_lock(&slots->lock);
	slots->page[process].state = state;
	__assign_bit(process, slots->quiesced, state == INSULA_LWK_QUIESCED);
	if (!insula_slots_disconnected(slots))
		smp_store_release(word, state); /* after all earlier writes */
	mutex_unlock(&slots->lock);
	insula_slots_notify(slots, process);
}

void insula_slots_start_process(struct insula_slots *slots, u32 process)
{
	slots_set_state(slots, process, INSULA_LWK_STARTED);
}

bool insula_slots_signal(struct insula_slots *slots, u32 number,
			 const struct insula_lwk_signal *signal, bool at_once)
{
	struct insula_lwk_process *process = insula_slots_process(slots, number);
	bool done = true;
	u64 queued;

	mutex_lock(&slots->lock);
	if (insula_slots_disconnected(slots))
		goto unlock;
	queued = READ_ONCE(process->signals_queued);
	if (queued - READ_ONCE(process->signals_dequeued) < INSULA_LWK_QUEUE) {
		process->queue[queued % INSULA_LWK_QUEUE] = *signal;
		smp_store_release(&process->signals_queued, queued + 1); /* the entry */
	} else if (at_once) {
		set_bit(signal->signal - 1, (unsigned long *)&process->signals_overflow);
	} else {
		done = false;
	}
unlock:
	mutex_unlock(&slots->lock);
	return done;
}

int insula_slots_add_process(struct insula_slots *slots, struct insula_slots_user *user)
{
	int page = -EPIPE;

	mutex_lock(&slots->lock);
	if (insula_slots_disconnected(slots))
		goto unlock;
	page = insula_slots_page_add_process(slots);
	if (!page) {
		page = -ENOSPC;
		goto unlock;
	}
	user->process = page;
	down_write(&slots->users_lock);
	list_add(&user->link, &slots->users);
	up_write(&slots->users_lock);
unlock:
	mutex_unlock(&slots->lock);
	return page;
}

void insula_slots_exit_process(struct insula_slots *slots, u32 process)
{
	u32 page;

	mutex_lock(&slots->lock);
	page = insula_slots_first_page(slots, process);
	for (; page; page = slots->page[page].next_slots)
		slots_visit_page(slots, page, insula_slot_clear);
	mutex_unlock(&slots->lock);
	slots_set_state(slots, process, INSULA_LWK_UNMAPPED);
}

void insula_slots_begin_exit(struct insula_slots *slots, u32 process)
{
	if (READ_ONCE(slots->page[process].state) != INSULA_LWK_EXITED)
		slots_set_state(slots, process, INSULA_LWK_EXITED);
}

bool insula_slots_await_stop(struct insula_slots *slots, u32 process)
{
	const u64 *state = &insula_slots_process(slots, process)->lwk_state;
	unsigned long deadline = jiffies + STOP_TIMEOUT;

	while (smp_load_acquire(state) == INSULA_LWK_ALIVE && /* its last writes */
	       !insula_slots_disconnected(slots) && !READ_ONCE(slots->shootdown.ended) &&
	       time_before(jiffies, deadline))
		usleep_range(STOP_POLL_US, 2 * STOP_POLL_US);
	return smp_load_acquire(state) == INSULA_LWK_STOPPED; /* its last writes */
}

void insula_slots_release_process(struct insula_slots *slots, u32 process,
				  struct insula_slots_user *user)
{
	down_write(&slots->users_lock);
	list_del(&user->link);
	up_write(&slots->users_lock);
	slots_set_state(slots, process, INSULA_LWK_QUIESCED);
}

static u64 slots_page_table(struct insula_slots *slots, u32 process)
{
	return READ_ONCE(insula_slots_process(slots, process)->page_table);
}

void insula_slots_visit_sharers(struct insula_slots *slots, u32 process,
				void (*action)(struct insula_slots_user *user, void *data),
				void *data)
{
	struct insula_slots_user *user;
	u64 page_table;

	down_read(&slots->users_lock);
	page_table = insula_slots_disconnected(slots) ? 0 : slots_page_table(slots, process);
	list_for_each_entry(user, &slots->users, link)
		if (user->process == process ||
		    (page_table && slots_page_table(slots, user->process) == page_table))
			action(user, data);
	up_read(&slots->users_lock);
}

void insula_slots_free(struct insula_slots *slots, struct insula_syscall_slot *slot)
{
	mutex_lock(&slots->lock);
	insula_slot_clear(slot);
	mutex_unlock(&slots->lock);
}
