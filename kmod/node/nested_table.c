// SPDX-License-Identifier: GPL-2.0-only
/*
 * Changes of a confined node's nested page table while the node runs: protocol in insula_monitor.h.
 *
 * Memory that becomes the node's is its own until it is removed. A frame of the base may have
 * several users, which are counted. Tables and counts stay until the node ends: two pages for each
 * 2 MiB of the base of which the node was ever given a frame.
 *
 * The base's memory management waits for removals while it holds locks of its own.
 */
#include "node/nested_table.h"

#include <linux/bitops.h>
#include <linux/compiler.h>
#include <linux/err.h>
#include <linux/file.h>
#include <linux/kref.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/xarray.h>

#include "node/nested_tree.h"

/* Frames whose entries are in one table: 2 MiB. */
#define WINDOW_FRAMES	INSULA_NESTED_ENTRIES

/* Number of users of a frame of the base. */
struct nested_users {
	u16 all;
	u16 writers;
};

struct nested_window {
	u64 *entries;		/* of level 1 */
	struct nested_users users[WINDOW_FRAMES];
};

struct insula_nested_table {
	struct kref refs;
	struct insula_nested_place place;
	struct insula_monitor_cores cores;
	struct mutex lock;	/* all below, and all entries; taken in memory reclaim */
	bool ended;		/* the monitor's memory is not to be written any more */
	struct insula_nested_tree tree;
	struct xarray windows;	/* by frame number / WINDOW_FRAMES */
};

struct insula_nested_table *insula_nested_table_create(const struct insula_nested_place *place,
						       struct insula_node *node)
{
	struct insula_nested_table *table = kzalloc(sizeof(*table), GFP_KERNEL);
	int err;

	if (!table)
		return ERR_PTR(-ENOMEM);
	err = insula_monitor_cores_init(&table->cores, node, &place->areas);
	if (err) {
		kfree(table);
		return ERR_PTR(err);
	}
	kref_init(&table->refs);
	table->place = *place;
	get_file(place->monitor);
	mutex_init(&table->lock);
	insula_nested_tree_init(&table->tree, place->root, &place->extent);
	xa_init(&table->windows);
	/* Memory reclaim may take the lock: teach lockdep before that happens. */
	fs_reclaim_acquire(GFP_KERNEL);
	might_lock(&table->lock);
	fs_reclaim_release(GFP_KERNEL);
	return table;
}

void insula_nested_table_get(struct insula_nested_table *table)
{
	if (table)
		kref_get(&table->refs);
}

static void nested_table_free(struct kref *refs)
{
	struct insula_nested_table *table = container_of(refs, struct insula_nested_table, refs);
	struct nested_window *window;
	unsigned long index;

	insula_nested_tree_destroy(&table->tree, insula_monitor_cores_lost(&table->cores));
	xa_for_each(&table->windows, index, window)
		kfree(window);
	xa_destroy(&table->windows);
	insula_monitor_cores_destroy(&table->cores);
	fput(table->place.monitor);
	kfree(table);
}

void insula_nested_table_put(struct insula_nested_table *table)
{
	if (table)
		kref_put(&table->refs, nested_table_free);
}

struct insula_monitor_cores *insula_nested_table_cores(struct insula_nested_table *table)
{
	return &table->cores;
}

void insula_nested_table_disconnect(struct insula_nested_table *table)
{
	if (table)
		insula_monitor_cores_disconnect(&table->cores);
}

void insula_nested_table_end(struct insula_nested_table *table, bool lost)
{
	if (!table)
		return;
	insula_monitor_cores_end(&table->cores, lost);
	mutex_lock(&table->lock);
	table->ended = true;
	mutex_unlock(&table->lock);
}

/* Announce that entries are about to be changed which cores may remember. */
static void nested_table_count_change(struct insula_nested_table *table)
{
	u64 *changes = table->place.changes;

	lockdep_assert_held(&table->lock);
	WRITE_ONCE(*changes, READ_ONCE(*changes) + 1);
	smp_wmb(); /* a core that misses the page sees the new count */
}

/* A granule of which single frames were mapped once has a table: it is used on. */
static int nested_granule_fill(struct insula_nested_table *table, u64 address, u64 *entries)
{
	unsigned int i;

	if (!entries)
		return -EIO;
	for (i = 0; i < WINDOW_FRAMES; i++)
		if (READ_ONCE(entries[i]))
			return -EEXIST;
	for (i = 0; i < WINDOW_FRAMES; i++)
		WRITE_ONCE(entries[i], insula_nested_page_entry(address + i * PAGE_SIZE, 1, true));
	return 0;
}

static int nested_granule_map_locked(struct insula_nested_table *table, u64 address,
				     struct insula_nested_spares *spares)
{
	u64 *entry, found;

	if (table->ended)
		return -EPIPE;
	entry = insula_nested_walk(&table->tree, address, 2, spares);
	if (IS_ERR(entry))
		return PTR_ERR(entry);
	found = READ_ONCE(*entry);
	if (insula_nested_is_table(found, 2))
		return nested_granule_fill(table, address,
					   insula_nested_table_at(&table->tree, found));
	if (insula_nested_present(found))
		return -EEXIST;
	WRITE_ONCE(*entry, insula_nested_page_entry(address, 2, true));
	return 0;
}

static int nested_granule_map(struct insula_nested_table *table, u64 address,
			      struct insula_nested_spares *spares)
{
	int err = insula_nested_spares_fill(&table->tree, spares);

	if (err)
		return err;
	mutex_lock(&table->lock);
	err = nested_granule_map_locked(table, address, spares);
	mutex_unlock(&table->lock);
	return err;
}

static void nested_granule_unmap(struct insula_nested_table *table, u64 address)
{
	u64 *entry, *entries, found;

	lockdep_assert_held(&table->lock);
	entry = insula_nested_walk(&table->tree, address, 2, NULL);
	if (IS_ERR(entry))
		return;
	found = READ_ONCE(*entry);
	if (!insula_nested_is_table(found, 2)) {
		xchg(entry, 0);
		return;
	}
	entries = insula_nested_table_at(&table->tree, found);
	if (entries)
		memset(entries, 0, PAGE_SIZE);
}

int insula_nested_memory_map(struct insula_nested_table *table, const struct insula_extent *memory)
{
	struct insula_extent mapped = { .start = memory->start };
	struct insula_nested_spares spares = {};
	int err = IS_ALIGNED(memory->start | memory->size, INSULA_GRANULE) ? 0 : -EINVAL;

	while (!err && mapped.size < memory->size) {
		err = nested_granule_map(table, memory->start + mapped.size, &spares);
		if (!err)
			mapped.size += INSULA_GRANULE;
		cond_resched();
	}
	insula_nested_spares_free(&table->tree, &spares);
	if (err && mapped.size) {
		insula_nested_memory_unmap(table, &mapped);
		insula_nested_table_flush(table);
	}
	return err;
}

void insula_nested_memory_unmap(struct insula_nested_table *table,
				const struct insula_extent *memory)
{
	u64 done;

	mutex_lock(&table->lock);
	if (!table->ended) {
		nested_table_count_change(table);
		for (done = 0; done < memory->size; done += INSULA_GRANULE)
			nested_granule_unmap(table, memory->start + done);
	}
	mutex_unlock(&table->lock);
}

static int nested_page_replace_locked(struct insula_nested_table *table, u64 address,
				      phys_addr_t frame, struct insula_nested_spares *spares)
{
	u64 *entry;

	if (table->ended)
		return -EPIPE;
	entry = insula_nested_split(&table->tree, address, spares);
	if (IS_ERR(entry))
		return PTR_ERR(entry);
	if (!insula_nested_present(READ_ONCE(*entry)))
		return -ENOENT;
	nested_table_count_change(table);
	xchg(entry, insula_nested_page_entry(frame, 1, true));
	return 0;
}

int insula_nested_page_replace(struct insula_nested_table *table, u64 address, phys_addr_t frame)
{
	struct insula_nested_spares spares = {};
	int err = insula_nested_spares_fill(&table->tree, &spares);

	if (!err) {
		mutex_lock(&table->lock);
		err = nested_page_replace_locked(table, address, frame, &spares);
		mutex_unlock(&table->lock);
	}
	insula_nested_spares_free(&table->tree, &spares);
	return err ?: insula_nested_table_flush(table);
}

/* Find or add the table of a new window. Lock held. */
static int nested_window_enter(struct insula_nested_table *table, struct nested_window *window,
			       unsigned long frame, struct insula_nested_spares *spares)
{
	u64 *entry;

	if (table->ended)
		return -EPIPE;
	entry = insula_nested_walk(&table->tree, PFN_PHYS(frame), 1, spares);
	if (IS_ERR(entry))
		return PTR_ERR(entry);
	window->entries = PTR_ALIGN_DOWN(entry, PAGE_SIZE);
	return 0;
}

/* Of two threads that add the same window, one wins. */
static int nested_window_add(struct insula_nested_table *table, unsigned long frame)
{
	struct nested_window *window = kzalloc(sizeof(*window), GFP_KERNEL), *other;
	struct insula_nested_spares spares = {};
	int err = window ? insula_nested_spares_fill(&table->tree, &spares) : -ENOMEM;

	if (err)
		goto free;
	mutex_lock(&table->lock);
	err = nested_window_enter(table, window, frame, &spares);
	mutex_unlock(&table->lock);
	if (err)
		goto free;
	other = xa_cmpxchg(&table->windows, frame / WINDOW_FRAMES, NULL, window, GFP_KERNEL);
	err = xa_err(other);
	if (!other)
		window = NULL;
free:
	insula_nested_spares_free(&table->tree, &spares);
	kfree(window);
	return err;
}

int insula_nested_frame_prepare(struct insula_nested_table *table, unsigned long frame)
{
	if (xa_load(&table->windows, frame / WINDOW_FRAMES))
		return 0;
	return nested_window_add(table, frame);
}

/* Entry of a frame as its users need it. */
static u64 nested_frame_entry(unsigned long frame, const struct nested_users *users)
{
	return users->all ? insula_nested_page_entry(PFN_PHYS(frame), 1, users->writers) : 0;
}

/*
 * Change the number of a frame's users. A core that remembers less than the new entry permits may
 * miss the page, too.
 */
static void nested_frame_change(struct insula_nested_table *table, unsigned long frame,
				struct nested_window *window, struct nested_users by)
{
	struct nested_users *users = &window->users[frame % WINDOW_FRAMES];
	u64 *entry = &window->entries[frame % WINDOW_FRAMES], old, new;

	lockdep_assert_held(&table->lock);
	old = nested_frame_entry(frame, users);
	users->all += by.all;
	users->writers += by.writers;
	new = nested_frame_entry(frame, users);
	if (table->ended || old == new)
		return;
	if (insula_nested_present(old))
		nested_table_count_change(table);
	xchg(entry, new);
}

static struct nested_window *nested_window_of(struct insula_nested_table *table,
					      unsigned long frame)
{
	return xa_load(&table->windows, frame / WINDOW_FRAMES);
}

/* Whether the window's frame can have one more user. Lock held. */
static int nested_frame_check(const struct insula_nested_table *table, unsigned long frame,
			      const struct nested_window *window)
{
	const struct nested_users *users = &window->users[frame % WINDOW_FRAMES];

	if (table->ended)
		return -EPIPE;
	if (!users->all && READ_ONCE(window->entries[frame % WINDOW_FRAMES]))
		return -EEXIST;
	return users->all == U16_MAX ? -ENOSPC : 0;
}

int insula_nested_frame_map(struct insula_nested_table *table, unsigned long frame, bool writer)
{
	struct nested_window *window = nested_window_of(table, frame);
	struct nested_users one = { .all = 1, .writers = writer };
	int err;

	if (!window)
		return -EAGAIN;
	mutex_lock(&table->lock);
	err = nested_frame_check(table, frame, window);
	if (!err)
		nested_frame_change(table, frame, window, one);
	mutex_unlock(&table->lock);
	return err;
}

void insula_nested_frame_add_writer(struct insula_nested_table *table, unsigned long frame)
{
	struct nested_users one = { .writers = 1 };

	mutex_lock(&table->lock);
	nested_frame_change(table, frame, nested_window_of(table, frame), one);
	mutex_unlock(&table->lock);
}

void insula_nested_frame_unmap(struct insula_nested_table *table, unsigned long frame, bool writer)
{
	struct nested_users minus_one = { .all = -1, .writers = -writer };

	mutex_lock(&table->lock);
	nested_frame_change(table, frame, nested_window_of(table, frame), minus_one);
	mutex_unlock(&table->lock);
}

int insula_nested_table_flush(struct insula_nested_table *table)
{
	return insula_monitor_cores_flush(&table->cores);
}
