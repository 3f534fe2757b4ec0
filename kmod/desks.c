// SPDX-License-Identifier: GPL-2.0-only
/*
 * A delegation area on the base's side: which of its pages are whose, which desks are
 * taken, and the doorbell by which the node's kernel says that it wants something of
 * threads that sleep. What a thread does at its desk is seat.c's.
 *
 * What the node writes leads nowhere: of its bitmaps only bits that stand for desks
 * that there are do something, and what they do is to wake a thread that looks again.
 */
#include "desks.h"

#include <linux/bitmap.h>
#include <linux/bits.h>
#include <linux/err.h>
#include <linux/file.h>
#include <linux/io.h>
#include <linux/kref.h>
#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/rwsem.h>
#include <linux/slab.h>

#include "arch/x86/doorbell.h"
#include "clock.h"
#include "memory.h"

#define FIRST_PAGE	(1 + INSULA_LWK_COUNTERS_PAGES)
#define WORD_BITS	64

/* What a page of the area is used for. */
enum use { UNUSED, PROCESS, REACH, DESKS };

/* Seats of a page of desks. Made when it is first used, and kept. */
struct seats {
	struct insula_seat seat[INSULA_LWK_DESKS_PER_PAGE];
};

struct insula_desks {
	struct kref refs;
	struct insula_desks_place place;
	struct insula_lwk_delegation *header;
	bool gone;			/* the node is no more */
	struct insula_doorbell doorbell;
	struct insula_clock clock;
	struct insula_ringable *ringable;
	struct mutex lock;		/* all below, and to write pages of processes */
	struct rw_semaphore users_lock;	/* users; taken within the former */
	struct list_head users;
	u8 use[INSULA_LWK_PAGES_MAX];	/* enum use */
	u8 state[INSULA_LWK_PAGES_MAX];	/* enum insula_lwk_base_state: the node can write its */
	u16 process_of[INSULA_LWK_PAGES_MAX];
	struct seats *seats[INSULA_LWK_PAGES_MAX];	/* read without it in interrupt */
};

static void *page_address_of(const struct insula_desks *desks, u32 page)
{
	return (void *)desks->header + page * PAGE_SIZE;
}

struct insula_lwk_process *insula_desks_process(struct insula_desks *desks, u32 process)
{
	return page_address_of(desks, process);
}

struct insula_lwk_reach *insula_desks_reach(struct insula_desks *desks, u32 process)
{
	return page_address_of(desks, process + 1);
}

struct file *insula_desks_memory(const struct insula_desks *desks)
{
	return desks->place.memory;
}

bool insula_desks_gone(const struct insula_desks *desks)
{
	return READ_ONCE(desks->gone);
}

bool insula_desks_ready(const struct insula_desks *desks)
{
	return READ_ONCE(desks->header->lwk_doorbell);
}

/* The seat behind a desk's bit, if there is one. In interrupt. */
static struct insula_seat *seat_of_bit(struct insula_desks *desks, u32 index)
{
	u32 page = index / INSULA_LWK_DESKS_PER_PAGE;
	struct seats *seats;

	if (page >= desks->place.pages)
		return NULL;
	seats = smp_load_acquire(&desks->seats[page]); /* what is in them */
	return seats ? &seats->seat[index % INSULA_LWK_DESKS_PER_PAGE] : NULL;
}

/* Do something to each seat whose bit is set, and take the bits. */
static void take_bits(struct insula_desks *desks, u64 *bits, void (*deed)(struct insula_seat *))
{
	u32 words = desks->place.pages * INSULA_LWK_DESKS_PER_PAGE / WORD_BITS, word;
	struct insula_seat *seat;
	u64 taken;

	for (word = 0; word < words; word++) {
		if (!READ_ONCE(bits[word]))
			continue;
		taken = xchg(&bits[word], 0);
		while (taken) {
			seat = seat_of_bit(desks, word * WORD_BITS + __ffs64(taken));
			if (seat)
				deed(seat);
			taken &= taken - 1;
		}
	}
}

static void rung(struct insula_doorbell *doorbell)
{
	struct insula_desks *desks = container_of(doorbell, struct insula_desks, doorbell);

	if (insula_desks_gone(desks))
		return;
	take_bits(desks, desks->header->rung, insula_seat_wake);
	take_bits(desks, desks->header->interrupted, insula_seat_break_off);
}

static void write_header(struct insula_desks *desks)
{
	struct insula_lwk_delegation *header = desks->header;

	header->magic = INSULA_LWK_MAGIC;
	header->revision = INSULA_LWK_REVISION;
	header->pages = desks->place.pages;
	insula_clock_begin(&desks->clock, &header->clock);
	insula_doorbell_publish(&desks->doorbell, &header->base_doorbell);
}

struct insula_desks *insula_desks_create(const struct insula_desks_place *place,
					 struct insula_ringable *ringable)
{
	struct insula_desks *desks = kvzalloc(sizeof(*desks), GFP_KERNEL);
	int err;

	if (!desks)
		return ERR_PTR(-ENOMEM);
	kref_init(&desks->refs);
	mutex_init(&desks->lock);
	init_rwsem(&desks->users_lock);
	INIT_LIST_HEAD(&desks->users);
	desks->place = *place;
	desks->header = phys_to_virt(place->start);
	desks->doorbell.rung = rung;
	err = insula_doorbell_create(&desks->doorbell);
	if (err) {
		kvfree(desks);
		return ERR_PTR(err);
	}
	desks->ringable = ringable;
	insula_memory_hold(place->memory);
	write_header(desks);
	return desks;
}

void insula_desks_get(struct insula_desks *desks)
{
	kref_get(&desks->refs);
}

static void free_desks(struct kref *refs)
{
	struct insula_desks *desks = container_of(refs, struct insula_desks, refs);
	u32 page;

	insula_doorbell_destroy(&desks->doorbell);
	insula_clock_end(&desks->clock);
	for (page = 0; page < desks->place.pages; page++)
		kfree(desks->seats[page]);
	insula_memory_put(desks->place.memory);
	kfree(desks->ringable);
	kvfree(desks);
}

void insula_desks_put(struct insula_desks *desks)
{
	if (desks)
		kref_put(&desks->refs, free_desks);
}

static void each_seat(struct insula_desks *desks, u32 page, void (*deed)(struct insula_seat *))
{
	u32 place;

	for (place = 0; desks->seats[page] && place < INSULA_LWK_DESKS_PER_PAGE; place++)
		deed(&desks->seats[page]->seat[place]);
}

void insula_desks_hang_up(struct insula_desks *desks)
{
	struct insula_desks_user *user;
	u32 page;

	if (!desks || insula_desks_gone(desks))
		return;
	insula_doorbell_publish(&desks->doorbell, NULL);
	insula_clock_end(&desks->clock);
	mutex_lock(&desks->lock);
	WRITE_ONCE(desks->gone, true);
	for (page = 0; page < desks->place.pages; page++)
		each_seat(desks, page, insula_seat_wake_for_good);
	down_read(&desks->users_lock);
	list_for_each_entry(user, &desks->users, link)
		user->hung_up(user);
	up_read(&desks->users_lock);
	mutex_unlock(&desks->lock);
}

void insula_desks_ring(struct insula_desks *desks, const u64 *place)
{
	rcu_read_lock();
	if (!insula_desks_gone(desks))
		insula_doorbell_ring(place, desks->ringable);
	rcu_read_unlock();
}

void insula_desks_write(struct insula_desks *desks, u64 *word, u64 value)
{
	mutex_lock(&desks->lock);
	if (!insula_desks_gone(desks))
		smp_store_release(word, value); /* what was written before */
	mutex_unlock(&desks->lock);
}

void insula_desks_call_attention(struct insula_desks *desks, u32 process)
{
	mutex_lock(&desks->lock);
	if (!insula_desks_gone(desks)) {
		set_bit(process, (unsigned long *)desks->header->attention);
		insula_desks_ring(desks, &desks->header->lwk_doorbell);
	}
	mutex_unlock(&desks->lock);
}

/* Say what becomes of a process: to us and to the node at once, since its pages may then go. */
static void enter_state(struct insula_desks *desks, u32 process, enum insula_lwk_base_state state)
{
	u64 *word = &insula_desks_process(desks, process)->base_state;

	mutex_lock(&desks->lock);
	desks->state[process] = state;
	if (!insula_desks_gone(desks))
		smp_store_release(word, state); /* what was written before */
	mutex_unlock(&desks->lock);
	insula_desks_call_attention(desks, process);
}

void insula_desks_begin_process(struct insula_desks *desks, u32 process)
{
	enter_state(desks, process, INSULA_LWK_BEGUN);
}

bool insula_desks_signal(struct insula_desks *desks, u32 number,
			 const struct insula_lwk_signal *signal, bool at_once)
{
	struct insula_lwk_process *process = insula_desks_process(desks, number);
	bool done = true;
	u64 told;

	mutex_lock(&desks->lock);
	if (insula_desks_gone(desks))
		goto unlock;
	told = READ_ONCE(process->told);
	if (told - READ_ONCE(process->taken) < INSULA_LWK_QUEUE) {
		process->queue[told % INSULA_LWK_QUEUE] = *signal;
		smp_store_release(&process->told, told + 1); /* the entry */
	} else if (at_once) {
		set_bit(signal->signal - 1, (unsigned long *)&process->signals);
	} else {
		done = false;
	}
unlock:
	mutex_unlock(&desks->lock);
	return done;
}

static void assign(struct insula_desks *desks, u32 page, enum use use, u32 process)
{
	WRITE_ONCE(desks->use[page], use);
	WRITE_ONCE(desks->process_of[page], process);
	WRITE_ONCE(desks->header->process_of[page], process);
}

/* Whether both sides are through with a process. */
static bool is_done(struct insula_desks *desks, u32 process)
{
	struct insula_lwk_process *shared = insula_desks_process(desks, process);

	return desks->state[process] == INSULA_LWK_GONE &&
	       READ_ONCE(shared->lwk_state) == INSULA_LWK_DONE;
}

/* Take back the pages of processes that are done. Lock held. */
static void reclaim(struct insula_desks *desks)
{
	u32 process, page;

	lockdep_assert_held(&desks->lock);
	for (process = FIRST_PAGE; process < desks->place.pages; process++) {
		if (desks->use[process] != PROCESS || !is_done(desks, process))
			continue;
		for (page = FIRST_PAGE; page < desks->place.pages; page++)
			if (desks->process_of[page] == process)
				assign(desks, page, UNUSED, 0);
	}
}

/* The first of `count` unused pages in a row, cleared; 0 if there are none. Lock held. */
static u32 find_pages(struct insula_desks *desks, u32 count)
{
	u32 page, run = 0;

	lockdep_assert_held(&desks->lock);
	for (page = FIRST_PAGE; page < desks->place.pages; page++) {
		run = desks->use[page] == UNUSED ? run + 1 : 0;
		if (run == count) {
			page -= count - 1;
			memset(page_address_of(desks, page), 0, count * PAGE_SIZE);
			return page;
		}
	}
	return 0;
}

int insula_desks_add_process(struct insula_desks *desks, struct insula_desks_user *user)
{
	int page = -EPIPE;

	mutex_lock(&desks->lock);
	if (insula_desks_gone(desks))
		goto unlock;
	reclaim(desks);
	page = find_pages(desks, 2);
	if (!page) {
		page = -ENOSPC;
		goto unlock;
	}
	assign(desks, page, PROCESS, page);
	assign(desks, page + 1, REACH, page);
	desks->state[page] = INSULA_LWK_NONE;
	user->process = page;
	down_write(&desks->users_lock);
	list_add(&user->link, &desks->users);
	up_write(&desks->users_lock);
unlock:
	mutex_unlock(&desks->lock);
	return page;
}

static struct seats *new_seats(struct insula_desks *desks, u32 page)
{
	struct insula_lwk_desk *shared = page_address_of(desks, page);
	struct seats *seats = kzalloc(sizeof(*seats), GFP_KERNEL);
	u32 i;

	for (i = 0; seats && i < INSULA_LWK_DESKS_PER_PAGE; i++)
		insula_seat_init(&seats->seat[i], desks, &shared[i],
				 page * INSULA_LWK_DESKS_PER_PAGE + i);
	return seats;
}

static bool is_desks_of(const struct insula_desks *desks, u64 page, u32 process)
{
	return page < desks->place.pages && READ_ONCE(desks->use[page]) == DESKS &&
	       READ_ONCE(desks->process_of[page]) == process;
}

void insula_desks_end_process(struct insula_desks *desks, u32 process)
{
	u32 page;

	mutex_lock(&desks->lock);
	for (page = FIRST_PAGE; page < desks->place.pages; page++)
		if (is_desks_of(desks, page, process))
			each_seat(desks, page, insula_seat_clear);
	mutex_unlock(&desks->lock);
	enter_state(desks, process, INSULA_LWK_ENDED);
}

void insula_desks_drop_process(struct insula_desks *desks, u32 process,
			       struct insula_desks_user *user)
{
	down_write(&desks->users_lock);
	list_del(&user->link);
	up_write(&desks->users_lock);
	enter_state(desks, process, INSULA_LWK_GONE);
}

static u64 page_table_of(struct insula_desks *desks, u32 process)
{
	return READ_ONCE(insula_desks_process(desks, process)->page_table);
}

void insula_desks_each_kin(struct insula_desks *desks, u32 process,
			   void (*deed)(struct insula_desks_user *user, void *data), void *data)
{
	struct insula_desks_user *user;
	u64 page_table;

	down_read(&desks->users_lock);
	page_table = insula_desks_gone(desks) ? 0 : page_table_of(desks, process);
	list_for_each_entry(user, &desks->users, link)
		if (user->process == process ||
		    (page_table && page_table_of(desks, user->process) == page_table))
			deed(user, data);
	up_read(&desks->users_lock);
}

/* A page of desks that is the process's from now on; 0 if there is none. Lock held. */
static u32 add_page(struct insula_desks *desks, u32 process)
{
	u32 page = find_pages(desks, 1);

	if (!page)
		return 0;
	if (!desks->seats[page]) {
		struct seats *seats = new_seats(desks, page);

		if (!seats)
			return 0;
		smp_store_release(&desks->seats[page], seats); /* what is in them */
	}
	assign(desks, page, DESKS, process);
	return page;
}

/* A free desk of a page. Lock held. */
static struct insula_seat *free_seat(struct insula_desks *desks, u32 page)
{
	struct insula_seat *seat = desks->seats[page]->seat;
	u32 i;

	lockdep_assert_held(&desks->lock);
	for (i = 0; i < INSULA_LWK_DESKS_PER_PAGE; i++, seat++) {
		if (seat->taken || insula_desks_gone(desks))
			continue;
		spin_lock_irq(&seat->lock);
		seat->break_off = false;
		spin_unlock_irq(&seat->lock);
		WRITE_ONCE(seat->taken, true);
		memset(seat->shared, 0, sizeof(*seat->shared));
		return seat;
	}
	return NULL;
}

struct insula_seat *insula_desks_take_seat(struct insula_desks *desks, u32 process)
{
	struct insula_seat *seat = NULL;
	u32 page;

	mutex_lock(&desks->lock);
	for (page = FIRST_PAGE; page < desks->place.pages && !seat; page++)
		if (is_desks_of(desks, page, process))
			seat = free_seat(desks, page);
	if (!seat && !insula_desks_gone(desks)) {
		reclaim(desks);
		page = add_page(desks, process);
		if (page)
			seat = free_seat(desks, page);
	}
	mutex_unlock(&desks->lock);
	return seat ? seat : ERR_PTR(-ENOSPC);
}

struct insula_seat *insula_desks_seat(struct insula_desks *desks, u32 process, u64 index)
{
	u64 page = index / INSULA_LWK_DESKS_PER_PAGE;
	struct insula_seat *seat;

	if (!is_desks_of(desks, page, process))
		return NULL;
	seat = &desks->seats[page]->seat[index % INSULA_LWK_DESKS_PER_PAGE];
	return READ_ONCE(seat->taken) ? seat : NULL;
}

phys_addr_t insula_desks_page(struct insula_desks *desks, u32 process, u64 page)
{
	return is_desks_of(desks, page, process) ? desks->place.start + page * PAGE_SIZE : 0;
}

void insula_desks_leave_seat(struct insula_desks *desks, struct insula_seat *seat)
{
	mutex_lock(&desks->lock);
	insula_seat_clear(seat);
	mutex_unlock(&desks->lock);
}
