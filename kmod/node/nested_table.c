// SPDX-License-Identifier: GPL-2.0-only
/*
 * Changes of a confined node's nested page table while the node runs: protocol in insula_monitor.h.
 *
 * User space lays the table out in the monitor's memory. Here tables are added in memory of the
 * base, which the node cannot reach either. They stay until the node ends: two pages, with the
 * counts, for each 2 MiB of the base of which the node was ever given a frame.
 *
 * What the monitor's memory says is believed only as far as it harms no one but the node: a process
 * of the base may have it mapped. So each table on a walk is checked to be one of ours, or in the
 * monitor's memory.
 *
 * The base's memory management waits for removals while it holds locks of its own.
 */
#include "node/nested_table.h"

#include <linux/bitops.h>
#include <linux/compiler.h>
#include <linux/err.h>
#include <linux/file.h>
#include <linux/gfp.h>
#include <linux/io.h>
#include <linux/kref.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/xarray.h>

#include "arch/x86/nested_paging.h"

/* Frames whose entries are in one table: 2 MiB. */
#define WINDOW_FRAMES	INSULA_NESTED_ENTRIES
/* Tables that the walk to a table of level 1 can lack. */
#define SPARE_TABLES	(INSULA_NESTED_LEVELS - 1)

/* Who uses a frame of the base. */
struct nested_users {
	u32 all;
	u32 writers;
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
	u64 *root;
	struct xarray pages;	/* of tables of our own, by frame number; adding: not under the lock */
	struct xarray windows;	/* by frame number / WINDOW_FRAMES */
};

/* Pages for tables that a walk may need, allocated before the lock is taken. */
struct nested_spares {
	struct page *page[SPARE_TABLES];
	unsigned int count;
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
	table->root = phys_to_virt(place->root);
	xa_init(&table->pages);
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
	struct page *page;

	/* A core that could not be stopped uses the tables forever. */
	if (!insula_monitor_cores_lost(&table->cores))
		xa_for_each(&table->pages, index, page)
			__free_page(page);
	xa_for_each(&table->windows, index, window)
		kfree(window);
	xa_destroy(&table->pages);
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

/* -ENOMEM. A page that is not needed stays spare. */
static int nested_spares_fill(struct insula_nested_table *table, struct nested_spares *spares)
{
	struct page *page;
	int err;

	while (spares->count < SPARE_TABLES) {
		page = alloc_page(GFP_KERNEL | __GFP_ZERO);
		if (!page)
			return -ENOMEM;
		err = xa_err(xa_store(&table->pages, page_to_pfn(page), page, GFP_KERNEL));
		if (err) {
			__free_page(page);
			return err;
		}
		spares->page[spares->count++] = page;
	}
	return 0;
}

static void nested_spares_free(struct insula_nested_table *table, struct nested_spares *spares)
{
	struct page *page;

	while (spares->count) {
		page = spares->page[--spares->count];
		xa_erase(&table->pages, page_to_pfn(page));
		__free_page(page);
	}
}

/* The table that an entry refers to, or NULL if it is none. */
static u64 *nested_table_at(struct insula_nested_table *table, u64 entry)
{
	const struct insula_extent *extent = &table->place.extent;
	u64 at = entry & INSULA_NESTED_ADDRESS_MASK;

	if ((at < extent->start || at - extent->start >= extent->size) &&
	    !xa_load(&table->pages, PHYS_PFN(at)))
		return NULL;
	return phys_to_virt(at);
}

/*
 * The table of `level` on the walk to an address; missing ones are added from `spares`, if any.
 * -ENOENT: one is missing. -EEXIST: a large page maps the address. -EIO: it is malformed.
 */
static u64 *nested_walk(struct insula_nested_table *table, u64 address, unsigned int level,
			struct nested_spares *spares)
{
	u64 *entries = table->root, *entry, found;
	unsigned int at;

	lockdep_assert_held(&table->lock);
	for (at = INSULA_NESTED_LEVELS; at > level; at--) {
		entry = &entries[insula_nested_index(address, at)];
		found = READ_ONCE(*entry);
		if (!insula_nested_present(found)) {
			if (!spares || !spares->count)
				return ERR_PTR(-ENOENT);
			found = insula_nested_table_entry(page_to_phys(spares->page[--spares->count]));
			WRITE_ONCE(*entry, found);
		}
		if (!insula_nested_is_table(found, at))
			return ERR_PTR(-EEXIST);
		entries = nested_table_at(table, found);
		if (!entries)
			return ERR_PTR(-EIO);
	}
	return entries;
}

/* Announce that access is about to be taken away. */
static void nested_table_count_removal(struct insula_nested_table *table)
{
	u64 *removals = table->place.removals;

	lockdep_assert_held(&table->lock);
	WRITE_ONCE(*removals, READ_ONCE(*removals) + 1);
	smp_wmb(); /* a core that misses the page sees the new count */
}

/* Entry of level 2 for a granule, which has to map it as a whole or not at all. */
static u64 *nested_granule(struct insula_nested_table *table, u64 address,
			   struct nested_spares *spares)
{
	u64 *entries = nested_walk(table, address, 2, spares);

	return IS_ERR(entries) ? entries : &entries[insula_nested_index(address, 2)];
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
				     struct nested_spares *spares)
{
	u64 *entry, found;

	if (table->ended)
		return -EPIPE;
	entry = nested_granule(table, address, spares);
	if (IS_ERR(entry))
		return PTR_ERR(entry);
	found = READ_ONCE(*entry);
	if (insula_nested_is_table(found, 2))
		return nested_granule_fill(table, address, nested_table_at(table, found));
	if (insula_nested_present(found))
		return -EEXIST;
	WRITE_ONCE(*entry, insula_nested_page_entry(address, 2, true));
	return 0;
}

static int nested_granule_map(struct insula_nested_table *table, u64 address,
			      struct nested_spares *spares)
{
	int err = nested_spares_fill(table, spares);

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
	entry = nested_granule(table, address, NULL);
	if (IS_ERR(entry))
		return;
	found = READ_ONCE(*entry);
	if (!insula_nested_is_table(found, 2)) {
		xchg(entry, 0);
		return;
	}
	entries = nested_table_at(table, found);
	if (entries)
		memset(entries, 0, PAGE_SIZE);
}

int insula_nested_memory_map(struct insula_nested_table *table, const struct insula_extent *memory)
{
	struct insula_extent mapped = { .start = memory->start };
	struct nested_spares spares = {};
	int err = IS_ALIGNED(memory->start | memory->size, INSULA_GRANULE) ? 0 : -EINVAL;

	while (!err && mapped.size < memory->size) {
		err = nested_granule_map(table, memory->start + mapped.size, &spares);
		if (!err)
			mapped.size += INSULA_GRANULE;
		cond_resched();
	}
	nested_spares_free(table, &spares);
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
		nested_table_count_removal(table);
		for (done = 0; done < memory->size; done += INSULA_GRANULE)
			nested_granule_unmap(table, memory->start + done);
	}
	mutex_unlock(&table->lock);
}

/* Find or add the table of a new window. Lock held. */
static int nested_window_enter(struct insula_nested_table *table, struct nested_window *window,
			       unsigned long frame, struct nested_spares *spares)
{
	u64 *entries;

	if (table->ended)
		return -EPIPE;
	entries = nested_walk(table, PFN_PHYS(frame), 1, spares);
	if (IS_ERR(entries))
		return PTR_ERR(entries);
	window->entries = entries;
	return 0;
}

/* Of two threads that add the same window, one wins. */
static int nested_window_add(struct insula_nested_table *table, unsigned long frame)
{
	struct nested_window *window = kzalloc(sizeof(*window), GFP_KERNEL), *other;
	struct nested_spares spares = {};
	int err = window ? nested_spares_fill(table, &spares) : -ENOMEM;

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
	nested_spares_free(table, &spares);
	kfree(window);
	return err;
}

int insula_nested_frame_prepare(struct insula_nested_table *table, unsigned long frame)
{
	return xa_load(&table->windows, frame / WINDOW_FRAMES) ? 0 : nested_window_add(table, frame);
}

/* Entry of a frame as its users need it. */
static u64 nested_frame_entry(unsigned long frame, const struct nested_users *users)
{
	return users->all ? insula_nested_page_entry(PFN_PHYS(frame), 1, users->writers) : 0;
}

int insula_nested_frame_map(struct insula_nested_table *table, unsigned long frame, bool writer)
{
	struct nested_window *window = xa_load(&table->windows, frame / WINDOW_FRAMES);
	struct nested_users *users;
	int err = 0;
	u64 *entry;

	if (!window)
		return -EAGAIN;
	users = &window->users[frame % WINDOW_FRAMES];
	entry = &window->entries[frame % WINDOW_FRAMES];
	mutex_lock(&table->lock);
	if (table->ended)
		err = -EPIPE;
	else if (!users->all && READ_ONCE(*entry))
		err = -EEXIST;
	else if (users->all == U32_MAX)
		err = -EBUSY;
	if (!err) {
		users->all++;
		users->writers += writer;
		WRITE_ONCE(*entry, nested_frame_entry(frame, users));
	}
	mutex_unlock(&table->lock);
	return err;
}

/* Change the number of a mapped frame's writers. Lock held, not ended. */
static void nested_frame_update(struct insula_nested_table *table, unsigned long frame,
				const struct nested_users *users, struct nested_window *window)
{
	u64 *entry = &window->entries[frame % WINDOW_FRAMES];
	u64 old = READ_ONCE(*entry), new = nested_frame_entry(frame, users);

	/* The processor sets bits of its own. */
	if (!((old ^ new) & insula_nested_page_entry(0, 1, true)))
		return;
	if (old & ~new & insula_nested_page_entry(0, 1, true))
		nested_table_count_removal(table);
	xchg(entry, new);
}

int insula_nested_frame_add_writer(struct insula_nested_table *table, unsigned long frame)
{
	struct nested_window *window = xa_load(&table->windows, frame / WINDOW_FRAMES);
	struct nested_users *users = &window->users[frame % WINDOW_FRAMES];
	int err = 0;

	mutex_lock(&table->lock);
	if (table->ended) {
		err = -EPIPE;
	} else {
		users->writers++;
		nested_frame_update(table, frame, users, window);
	}
	mutex_unlock(&table->lock);
	return err;
}

void insula_nested_frame_unmap(struct insula_nested_table *table, unsigned long frame, bool writer)
{
	struct nested_window *window = xa_load(&table->windows, frame / WINDOW_FRAMES);
	struct nested_users *users = &window->users[frame % WINDOW_FRAMES];

	mutex_lock(&table->lock);
	users->all--;
	users->writers -= writer;
	if (!table->ended)
		nested_frame_update(table, frame, users, window);
	mutex_unlock(&table->lock);
}

int insula_nested_table_flush(struct insula_nested_table *table)
{
	return insula_monitor_cores_flush(&table->cores);
}
