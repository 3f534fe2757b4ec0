// SPDX-License-Identifier: GPL-2.0-only
/*
 * Windows of granted memory. Each tracks the process's page tables by an interval notifier: its
 * pages are found by hmm_range_fault(), hold no reference, and stay granted until the base is
 * about to change their mapping. Then the callback revokes them and returns once the node no
 * longer uses them (grant_channel.c).
 */
#include "grant/grant_window.h"

#include <linux/err.h>
#include <linux/hmm.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "grant/grant_channel.h"
#include "node/frame_record.h"
#include "node/nested_table.h"
#include "node/node_state.h"

#define WINDOW_PAGES	INSULA_GRANT_WINDOW_PAGES
#define WINDOW		(WINDOW_PAGES << PAGE_SHIFT)
/* Limit of retries while the base keeps changing a range, or the node is slow. */
#define GRANT_TIMEOUT	(5 * HZ)

struct grant_window {
	struct mmu_interval_notifier notifier;
	struct grant_table *table;
	unsigned long start;
	unsigned long frames[WINDOW_PAGES];	/* records of granted pages; channel's lock */
};

/* Consecutive pages of a window. */
struct span {
	u32 first, count;
};

static unsigned long grant_window_address(const struct grant_window *window, u32 page)
{
	return window->start + ((unsigned long)page << PAGE_SHIFT);
}

/* Intersection of [start, end) with the window. */
static struct span grant_window_range(const struct grant_window *window, unsigned long start,
				      unsigned long end)
{
	start = max(start, window->start);
	end = min(end, window->start + WINDOW);
	return (struct span) {
		.first = (start - window->start) >> PAGE_SHIFT,
		.count = end > start ? (PAGE_ALIGN(end) - start) >> PAGE_SHIFT : 0,
	};
}

/* Channel's lock held. */
static bool grant_window_is_granted(const struct grant_window *window, struct span span)
{
	insula_grant_channel_assert_locked(window->table->channel);
	while (span.count--)
		if (window->frames[span.first + span.count])
			return true;
	return false;
}

/* Mark pages as not granted. If the node may still use them (`lost`), leak them. */
static void grant_window_clear(struct grant_window *window, struct span span, bool lost)
{
	struct insula_grant_channel *channel = window->table->channel;
	u32 i;

	insula_grant_channel_lock(channel);
	for (i = span.first; i < span.first + span.count; i++)
		insula_frame_record_forget(&window->frames[i], lost);
	insula_grant_channel_unlock(channel);
}

/* Whatever a confined node has answered, it does not access the pages any more. -EIO: it may. */
static int grant_window_confine(struct grant_window *window, struct span span)
{
	struct insula_grant_channel *channel = window->table->channel;
	struct insula_nested_table *nested = insula_grant_channel_nested(channel);
	bool revoked = false;
	u32 i;

	insula_grant_channel_lock(channel);
	for (i = span.first; i < span.first + span.count; i++)
		revoked |= insula_frame_record_revoke(nested, &window->frames[i]);
	insula_grant_channel_unlock(channel);
	return revoked ? insula_nested_table_flush(nested) : 0;
}

static void grant_window_revoke(struct grant_window *window, struct span span)
{
	struct grant_table *table = window->table;
	struct insula_grant_message message = {
		.start = grant_window_address(window, span.first),
		.size = (u64)span.count << PAGE_SHIFT,
		.table = table->id,
	};
	int err = insula_grant_channel_revoke(table->channel, &message, table->timeout_ms);

	if (grant_window_confine(window, span))
		err = -EIO;
	grant_window_clear(window, span, err == -EIO);
	/* If it is still the run of the node to which the table belongs. */
	if (err && READ_ONCE(table->node->grants) == table->channel)
		insula_node_unresponsive(table->node);
}

/* The base keeps the mapping unchanged until this returns. */
static bool grant_window_invalidate(struct mmu_interval_notifier *notifier,
				    const struct mmu_notifier_range *range,
				    unsigned long sequence)
{
	struct grant_window *window = container_of(notifier, struct grant_window, notifier);
	struct span span = grant_window_range(window, range->start, range->end);
	struct insula_grant_channel *channel = window->table->channel;
	bool granted;

	if (mmu_notifier_range_blockable(range))
		insula_grant_channel_lock(channel);
	else if (!insula_grant_channel_trylock(channel))
		return false;
	mmu_interval_set_seq(notifier, sequence);
	granted = grant_window_is_granted(window, span);
	insula_grant_channel_unlock(channel);
	if (!granted)
		return true;
	if (!mmu_notifier_range_blockable(range))
		return false;
	grant_window_revoke(window, span);
	return true;
}

static const struct mmu_interval_notifier_ops grant_window_ops = {
	.invalidate = grant_window_invalidate,
};

static struct grant_window *grant_window_new(struct grant_table *table, unsigned long start)
{
	struct grant_window *window = kvzalloc(sizeof(*window), GFP_KERNEL);
	int err;

	if (!window)
		return ERR_PTR(-ENOMEM);
	window->table = table;
	window->start = start;
	err = mmu_interval_notifier_insert(&window->notifier, table->mm, start, WINDOW,
					   &grant_window_ops);
	if (err)
		goto free;
	err = xa_err(xa_store(&table->windows, start / WINDOW, window, GFP_KERNEL));
	if (!err)
		return window;
	mmu_interval_notifier_remove(&window->notifier);
free:
	kvfree(window);
	return ERR_PTR(err);
}

static struct grant_window *grant_window_get(struct grant_table *table, unsigned long address)
{
	struct grant_window *window = xa_load(&table->windows, address / WINDOW);

	return window ? window : grant_window_new(table, ALIGN_DOWN(address, WINDOW));
}

static void grant_window_revoke_if_granted(struct grant_window *window, struct span span)
{
	bool granted;

	insula_grant_channel_lock(window->table->channel);
	granted = grant_window_is_granted(window, span);
	insula_grant_channel_unlock(window->table->channel);
	if (granted)
		grant_window_revoke(window, span);
}

static void grant_window_remove(struct grant_window *window)
{
	grant_window_revoke_if_granted(window, (struct span) { .count = WINDOW_PAGES });
	mmu_interval_notifier_remove(&window->notifier);
	xa_erase(&window->table->windows, window->start / WINDOW);
	kvfree(window);
}

/*
 * The node may write a page unnoticed by the base. Page cache is dirty already, since the base's
 * own mapping was made writable; swap-backed pages may not be.
 */
static void grant_window_mark_dirty(unsigned long pfn)
{
	struct folio *folio = page_folio(hmm_pfn_to_page(pfn));

	if (folio_test_swapbacked(folio) && !folio_test_dirty(folio))
		folio_mark_dirty(folio);
}

/* Collect as many pages as fit one message, as runs. Returns the number of pages. */
static u32 grant_window_gather_runs(struct grant_table *table, const unsigned long *pfns,
				    u32 count, u8 *runs)
{
	struct insula_pages *run = NULL;
	phys_addr_t start;
	u32 i;

	*runs = 0;
	for (i = 0; i < count; i++) {
		start = PFN_PHYS(pfns[i] & ~HMM_PFN_FLAGS);
		if (run && run->start + ((u64)run->count << PAGE_SHIFT) == start) {
			run->count++;
			continue;
		}
		if (*runs == ARRAY_SIZE(table->runs))
			break;
		run = &table->runs[(*runs)++];
		*run = (struct insula_pages) {
			.start = start,
			.count = 1,
			.right = INSULA_GRANTED,
		};
	}
	return i;
}

/*
 * Record pages before the node is told of them: it may access them at once. If telling it fails
 * they count as granted, until they are revoked.
 */
static int grant_window_record(struct grant_window *window, u32 from, u32 count, u32 flags)
{
	struct grant_table *table = window->table;
	bool writable = flags & INSULA_GRANT_WRITABLE;
	int err = 0;
	u32 i;

	for (i = from; !err && i < from + count; i++) {
		err = insula_frame_record_add(insula_grant_channel_nested(table->channel),
					      &window->frames[i], table->pfns[i], writable);
		if (!err && writable)
			grant_window_mark_dirty(table->pfns[i]);
	}
	return err;
}

/* Channel's lock held: the mapping cannot change meanwhile. */
static int grant_window_send(struct grant_window *window, struct span span, u32 flags)
{
	struct grant_table *table = window->table;
	u32 end = span.first + span.count, from = span.first, some;
	struct insula_grant_message message = {
		.table = table->id,
		.flags = flags,
	};
	u8 runs;
	int err;

	insula_grant_channel_assert_locked(table->channel);
	for (; from < end; from += some) {
		some = grant_window_gather_runs(table, table->pfns + from, end - from, &runs);
		message.start = grant_window_address(window, from);
		message.size = (u64)some << PAGE_SHIFT;
		err = grant_window_record(window, from, some, flags);
		if (!err)
			err = insula_grant_channel_grant(table->channel, &message, table->runs,
							 runs);
		if (err)
			return err;
	}
	return 0;
}

/* -EBUSY, -EAGAIN: retry. */
static int grant_window_try(struct grant_window *window, struct span span, u32 flags)
{
	struct grant_table *table = window->table;
	struct hmm_range range = {
		.notifier = &window->notifier,
		.start = grant_window_address(window, span.first),
		.end = grant_window_address(window, span.first + span.count),
		.hmm_pfns = table->pfns + span.first,
		.default_flags = HMM_PFN_REQ_FAULT,
	};
	int err;

	if (flags & INSULA_GRANT_WRITABLE)
		range.default_flags |= HMM_PFN_REQ_WRITE;
	range.notifier_seq = mmu_interval_read_begin(&window->notifier);
	mmap_read_lock(table->mm);
	err = hmm_range_fault(&range);
	mmap_read_unlock(table->mm);
	if (!err)
		err = insula_frame_records_prepare(insula_grant_channel_nested(table->channel),
						   table->pfns + span.first, span.count);
	if (err)
		return err;
	insula_grant_channel_lock(table->channel);
	err = mmu_interval_read_retry(&window->notifier, range.notifier_seq) ? -EBUSY :
	      grant_window_send(window, span, flags);
	insula_grant_channel_unlock(table->channel);
	return err;
}

static int grant_window_retry(struct grant_window *window, struct span span, u32 flags)
{
	unsigned long deadline = jiffies + GRANT_TIMEOUT;
	int err;

	for (;;) {
		err = grant_window_try(window, span, flags);
		if (err != -EBUSY && err != -EAGAIN)
			return err;
		if (fatal_signal_pending(current))
			return -EINTR;
		if (time_after(jiffies, deadline))
			return -EBUSY;
		cond_resched();
	}
}

int insula_grant_window_add(struct grant_table *table, u64 at, u64 end, u32 flags, u64 *pages)
{
	struct grant_window *window = grant_window_get(table, at);
	struct span span;
	u32 i;
	int err;

	lockdep_assert_held(&table->call_lock);
	if (IS_ERR(window))
		return PTR_ERR(window);
	span = grant_window_range(window, at, end);
	err = grant_window_retry(window, span, flags);
	if (err)
		return err;
	for (i = 0; i < span.count; i++)
		pages[i] = PFN_PHYS(table->pfns[span.first + i] & ~HMM_PFN_FLAGS);
	return span.count;
}

void insula_grant_windows_revoke(struct grant_table *table, u64 start, u64 end)
{
	struct grant_window *window;
	unsigned long index;

	lockdep_assert_held(&table->call_lock);
	xa_for_each_range(&table->windows, index, window, start / WINDOW, (end - 1) / WINDOW) {
		if (start <= window->start && window->start + WINDOW <= end)
			grant_window_remove(window);
		else
			grant_window_revoke_if_granted(window,
						       grant_window_range(window, start, end));
	}
}

void insula_grant_windows_remove(struct grant_table *table)
{
	struct grant_window *window;
	unsigned long index;

	xa_for_each(&table->windows, index, window)
		grant_window_remove(window);
	xa_destroy(&table->windows);
}
