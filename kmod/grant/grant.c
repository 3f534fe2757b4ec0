// SPDX-License-Identifier: GPL-2.0-only
/*
 * Grant tables: descriptors by which a process of the base grants its own memory to a node.
 *
 * Memory is granted in windows. Each tracks the process's page tables by an interval notifier:
 * its pages are found by hmm_range_fault(), hold no reference, and stay granted until the base
 * is about to change their mapping. Then the callback revokes them and returns once the node
 * no longer uses them (grant_channel.c).
 */
#include "grant/grant.h"

#include <linux/err.h>
#include <linux/file.h>
#include <linux/hmm.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/xarray.h>

#include "grant/grant_channel.h"
#include "mem/file.h"
#include "node/node_state.h"

#define WINDOW		(2UL << 20)
#define WINDOW_PAGES	(WINDOW >> PAGE_SHIFT)
/* Limit of retries while the base keeps changing a range, or the node is slow. */
#define GRANT_TIMEOUT	(5 * HZ)

struct grant_table {
	struct insula_node *node;
	struct insula_grant_channel *channel;
	struct mm_struct *mm;
	u32 id;
	u32 timeout_ms;
	struct mutex call_lock;		/* all below; never taken in memory reclaim */
	struct xarray windows;		/* by address / WINDOW */
	unsigned long pfns[WINDOW_PAGES];
	struct insula_pages runs[INSULA_GRANT_RUNS_MAX];
};

struct window {
	struct mmu_interval_notifier notifier;
	struct grant_table *table;
	unsigned long start;
	unsigned long pfns[WINDOW_PAGES];	/* HMM's, of granted pages; channel's lock */
};

/* Consecutive pages of a window. */
struct span {
	u32 first, count;
};

static unsigned long grant_window_address(const struct window *window, u32 page)
{
	return window->start + ((unsigned long)page << PAGE_SHIFT);
}

/* Intersection of [start, end) with the window. */
static struct span grant_window_range(const struct window *window, unsigned long start,
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
static bool grant_is_granted(const struct window *window, struct span span)
{
	insula_grant_channel_assert_locked(window->table->channel);
	while (span.count--)
		if (window->pfns[span.first + span.count])
			return true;
	return false;
}

/* Mark pages as not granted. If the node may still use them (`lost`), leak them. */
static void grant_clear(struct window *window, struct span span, bool lost)
{
	struct insula_grant_channel *channel = window->table->channel;
	u32 i;

	insula_grant_channel_lock(channel);
	for (i = span.first; i < span.first + span.count; i++) {
		if (window->pfns[i] && lost)
			get_page(hmm_pfn_to_page(window->pfns[i]));
		window->pfns[i] = 0;
	}
	insula_grant_channel_unlock(channel);
}

static void grant_revoke(struct window *window, struct span span)
{
	struct grant_table *table = window->table;
	struct insula_grant_message message = {
		.start = grant_window_address(window, span.first),
		.size = (u64)span.count << PAGE_SHIFT,
		.table = table->id,
	};
	int err = insula_grant_channel_revoke(table->channel, &message, table->timeout_ms);

	grant_clear(window, span, err == -EIO);
	if (err)
		insula_node_unresponsive(table->node, table->channel);
}

/* The base keeps the mapping unchanged until this returns. */
static bool grant_invalidate(struct mmu_interval_notifier *notifier,
			     const struct mmu_notifier_range *range, unsigned long sequence)
{
	struct window *window = container_of(notifier, struct window, notifier);
	struct span span = grant_window_range(window, range->start, range->end);
	struct insula_grant_channel *channel = window->table->channel;
	bool granted;

	if (mmu_notifier_range_blockable(range))
		insula_grant_channel_lock(channel);
	else if (!insula_grant_channel_trylock(channel))
		return false;
	mmu_interval_set_seq(notifier, sequence);
	granted = grant_is_granted(window, span);
	insula_grant_channel_unlock(channel);
	if (!granted)
		return true;
	if (!mmu_notifier_range_blockable(range))
		return false;
	grant_revoke(window, span);
	return true;
}

static const struct mmu_interval_notifier_ops notifier_ops = {
	.invalidate = grant_invalidate,
};

static struct window *grant_add_window(struct grant_table *table, unsigned long start)
{
	struct window *window = kvzalloc(sizeof(*window), GFP_KERNEL);
	int err;

	if (!window)
		return ERR_PTR(-ENOMEM);
	window->table = table;
	window->start = start;
	err = mmu_interval_notifier_insert(&window->notifier, table->mm, start, WINDOW,
					   &notifier_ops);
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

static struct window *grant_window(struct grant_table *table, unsigned long address)
{
	struct window *window = xa_load(&table->windows, address / WINDOW);

	return window ? window : grant_add_window(table, ALIGN_DOWN(address, WINDOW));
}

static void grant_revoke_if_granted(struct window *window, struct span span)
{
	bool granted;

	insula_grant_channel_lock(window->table->channel);
	granted = grant_is_granted(window, span);
	insula_grant_channel_unlock(window->table->channel);
	if (granted)
		grant_revoke(window, span);
}

static void grant_remove_window(struct window *window)
{
	grant_revoke_if_granted(window, (struct span) { .count = WINDOW_PAGES });
	mmu_interval_notifier_remove(&window->notifier);
	xa_erase(&window->table->windows, window->start / WINDOW);
	kvfree(window);
}

/*
 * The node may write a page unnoticed by the base. Page cache is dirty already, since the base's
 * own mapping was made writable; swap-backed pages may not be.
 */
static void grant_mark_dirty(unsigned long pfn)
{
	struct folio *folio = page_folio(hmm_pfn_to_page(pfn));

	if (folio_test_swapbacked(folio) && !folio_test_dirty(folio))
		folio_mark_dirty(folio);
}

/* Collect as many pages as fit one message, as runs. Returns the number of pages. */
static u32 grant_gather_runs(struct grant_table *table, const unsigned long *pfns, u32 count,
			     u8 *runs)
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

/* Channel's lock held: the mapping cannot change meanwhile. */
static int grant_send(struct window *window, struct span span, u32 flags)
{
	struct grant_table *table = window->table;
	u32 end = span.first + span.count, from = span.first, some, i;
	struct insula_grant_message message = {
		.table = table->id,
		.flags = flags,
	};
	u8 runs;
	int err;

	insula_grant_channel_assert_locked(table->channel);
	for (; from < end; from += some) {
		some = grant_gather_runs(table, table->pfns + from, end - from, &runs);
		message.start = grant_window_address(window, from);
		message.size = (u64)some << PAGE_SHIFT;
		err = insula_grant_channel_grant(table->channel, &message, table->runs, runs);
		if (err)
			return err;
		for (i = from; i < from + some; i++) {
			window->pfns[i] = table->pfns[i];
			if (flags & INSULA_GRANT_WRITABLE)
				grant_mark_dirty(table->pfns[i]);
		}
	}
	return 0;
}

/* -EBUSY, -EAGAIN: retry. */
static int grant_try(struct window *window, struct span span, u32 flags)
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
	if (err)
		return err;
	insula_grant_channel_lock(table->channel);
	err = mmu_interval_read_retry(&window->notifier, range.notifier_seq) ? -EBUSY :
	      grant_send(window, span, flags);
	insula_grant_channel_unlock(table->channel);
	return err;
}

static int grant_retry(struct window *window, struct span span, u32 flags)
{
	unsigned long deadline = jiffies + GRANT_TIMEOUT;
	int err;

	for (;;) {
		err = grant_try(window, span, flags);
		if (err != -EBUSY && err != -EAGAIN)
			return err;
		if (fatal_signal_pending(current))
			return -EINTR;
		if (time_after(jiffies, deadline))
			return -EBUSY;
		cond_resched();
	}
}

/* Grant the part of [at, end) in one window. Returns the number of pages and their addresses. */
static int grant_in_window(struct grant_table *table, u64 at, u64 end, u32 flags, u64 *pages)
{
	struct window *window = grant_window(table, at);
	struct span span;
	u32 i;
	int err;

	lockdep_assert_held(&table->call_lock);
	if (IS_ERR(window))
		return PTR_ERR(window);
	span = grant_window_range(window, at, end);
	err = grant_retry(window, span, flags);
	if (err)
		return err;
	for (i = 0; i < span.count; i++)
		pages[i] = PFN_PHYS(table->pfns[span.first + i] & ~HMM_PFN_FLAGS);
	return span.count;
}

/*
 * One window at a time. Results are copied out unlocked: the caller's memory may be a node's,
 * even this one's.
 */
static int grant_all(struct grant_table *table, const struct insula_grant_add *grant, u64 *pages)
{
	u64 __user *to = u64_to_user_ptr(grant->pages);
	u64 done, all = grant->size >> PAGE_SHIFT, copied;
	int count;

	for (done = 0; done < all; done += count) {
		if (fatal_signal_pending(current) || mutex_lock_killable(&table->call_lock))
			return -EINTR;
		count = grant_in_window(table, grant->address + (done << PAGE_SHIFT),
					grant->address + grant->size, grant->flags, pages);
		mutex_unlock(&table->call_lock);
		if (count < 0)
			return count;
		copied = done < grant->capacity ? min_t(u64, count, grant->capacity - done) : 0;
		if (copy_to_user(&to[done], pages, copied * sizeof(*pages)))
			return -EFAULT;
	}
	return 0;
}

static bool grant_range_valid(u64 address, u64 size)
{
	return size && !((address | size) & ~PAGE_MASK) && address < TASK_SIZE_MAX &&
	       size <= TASK_SIZE_MAX - address;
}

static int grant_ioctl_add(struct grant_table *table, void __user *argument)
{
	struct insula_grant_add grant;
	u64 *pages;
	int err;

	if (copy_from_user(&grant, argument, sizeof(grant)))
		return -EFAULT;
	if (grant.flags & ~INSULA_GRANT_WRITABLE || !grant_range_valid(grant.address, grant.size))
		return -EINVAL;
	err = insula_grant_channel_connect(table->channel);
	if (err)
		return err;
	pages = kmalloc_array(WINDOW_PAGES, sizeof(*pages), GFP_KERNEL);
	if (!pages)
		return -ENOMEM;
	if (mmget_not_zero(table->mm)) {
		err = grant_all(table, &grant, pages);
		mmput(table->mm);
	} else {
		err = -ESRCH;
	}
	kfree(pages);
	return err;
}

static int grant_ioctl_revoke(struct grant_table *table, void __user *argument)
{
	struct insula_grant_revoke revoke;
	unsigned long index;
	struct window *window;
	u64 end;

	if (copy_from_user(&revoke, argument, sizeof(revoke)))
		return -EFAULT;
	if (!grant_range_valid(revoke.address, revoke.size))
		return -EINVAL;
	end = revoke.address + revoke.size;
	if (mutex_lock_killable(&table->call_lock))
		return -EINTR;
	xa_for_each_range(&table->windows, index, window, revoke.address / WINDOW,
			  (end - 1) / WINDOW) {
		if (revoke.address <= window->start && window->start + WINDOW <= end)
			grant_remove_window(window);
		else
			grant_revoke_if_granted(window,
						grant_window_range(window, revoke.address, end));
	}
	mutex_unlock(&table->call_lock);
	return 0;
}

static long grant_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	switch (command) {
	case INSULA_GRANT_ADD:
		return grant_ioctl_add(file->private_data, (void __user *)argument);
	case INSULA_GRANT_REVOKE:
		return grant_ioctl_revoke(file->private_data, (void __user *)argument);
	default:
		return -ENOTTY;
	}
}

static void grant_table_free(struct grant_table *table)
{
	struct window *window;
	unsigned long index;

	xa_for_each(&table->windows, index, window)
		grant_remove_window(window);
	xa_destroy(&table->windows);
	mmdrop(table->mm);
	insula_grant_channel_put(table->channel);
	insula_node_put(table->node);
	kvfree(table);
}

static int grant_release(struct inode *inode, struct file *file)
{
	grant_table_free(file->private_data);
	return 0;
}

static const struct file_operations grant_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = grant_ioctl,
	.release = grant_release,
};

static struct grant_table *grant_table_new(struct insula_node *node, u32 timeout_ms)
{
	struct grant_table *table = kvzalloc(sizeof(*table), GFP_KERNEL);

	if (!table)
		return NULL;
	insula_grant_channel_get(node->grants);
	table->channel = node->grants;
	kref_get(&node->refs);
	table->node = node;
	mmgrab(current->mm);
	table->mm = current->mm;
	table->id = insula_grant_channel_new_id(node->grants);
	table->timeout_ms = timeout_ms;
	mutex_init(&table->call_lock);
	xa_init(&table->windows);
	return table;
}

/* Create the node's grant channel, on the first grant table in this run. */
static int grant_channel_prepare(struct insula_node *node)
{
	struct insula_grant_channel *channel;

	lockdep_assert_held(&node->lock);
	if (node->state != INSULA_RUNNING)
		return -EPIPE;
	if (!node->area)
		return -ENOENT;
	if (node->grants)
		return 0;
	channel = insula_grant_channel_create(node->area);
	if (IS_ERR(channel))
		return PTR_ERR(channel);
	WRITE_ONCE(node->grants, channel);
	return 0;
}

static struct grant_table *grant_table_open(struct insula_node *node, u32 timeout_ms)
{
	int err = insula_node_lock(node);
	struct grant_table *table;

	if (err)
		return ERR_PTR(err);
	err = grant_channel_prepare(node);
	table = err ? ERR_PTR(err) : grant_table_new(node, timeout_ms);
	mutex_unlock(&node->lock);
	return table ?: ERR_PTR(-ENOMEM);
}

int insula_grant_table_create(struct insula_node *node, void __user *argument)
{
	struct insula_grant_table request;
	struct grant_table *table;
	struct file *file;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (request.timeout_ms < INSULA_GRANT_TIMEOUT_MIN_MS ||
	    request.timeout_ms > INSULA_GRANT_TIMEOUT_MAX_MS)
		return -EINVAL;
	table = grant_table_open(node, request.timeout_ms);
	if (IS_ERR(table))
		return PTR_ERR(table);
	request.id = table->id;
	if (copy_to_user(argument, &request, sizeof(request))) {
		grant_table_free(table);
		return -EFAULT;
	}
	file = insula_file_create("[insula-grant-table]", &grant_fops, table);
	if (IS_ERR(file)) {
		grant_table_free(table);
		return PTR_ERR(file);
	}
	return insula_file_install(file);
}
