// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lenders: descriptors by which a process of the base lends its own memory to a node.
 *
 * The memory is lent in windows. Each follows the process' page tables by an interval
 * notifier: what lies in them is found by hmm_range_fault(), holds no reference and
 * stays the node's until the base is about to change it. Then the callback takes it back
 * and returns when the node has ceased to use it (lending.c).
 */
#include "lend.h"

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

#include "file.h"
#include "lending.h"
#include "life.h"

#define WINDOW		(2UL << 20)
#define WINDOW_PAGES	(WINDOW >> PAGE_SHIFT)
/* A range that the base changes all the time, or a node that is slow, has this long. */
#define GRANT_PATIENCE	(5 * HZ)

struct lender {
	struct insula_node *node;
	struct insula_lending *lending;
	struct mm_struct *mm;
	u32 number;
	u32 patience_ms;
	struct mutex calls;		/* all below; whoever reclaims memory never takes it */
	struct xarray windows;		/* by address / WINDOW */
	unsigned long pfns[WINDOW_PAGES];
	struct insula_pages runs[INSULA_FRAMES_RUNS_MAX];
};

struct window {
	struct mmu_interval_notifier notifier;
	struct lender *lender;
	unsigned long start;
	unsigned long pfns[WINDOW_PAGES];	/* HMM's words of what is lent; lending's lock */
};

/* Pages of a window. */
struct stretch {
	u32 first, count;
};

static unsigned long address_of(const struct window *window, u32 page)
{
	return window->start + ((unsigned long)page << PAGE_SHIFT);
}

/* What of [start, end) lies in the window. */
static struct stretch stretch_of(const struct window *window, unsigned long start,
				 unsigned long end)
{
	start = max(start, window->start);
	end = min(end, window->start + WINDOW);
	return (struct stretch) {
		.first = (start - window->start) >> PAGE_SHIFT,
		.count = end > start ? (PAGE_ALIGN(end) - start) >> PAGE_SHIFT : 0,
	};
}

/* Lending's lock held. */
static bool is_lent(const struct window *window, struct stretch stretch)
{
	insula_lending_assert_locked(window->lender->lending);
	while (stretch.count--)
		if (window->pfns[stretch.first + stretch.count])
			return true;
	return false;
}

/* It is the node's no more; if that cannot be known, nor anybody else's, ever. */
static void forget(struct window *window, struct stretch stretch, bool lost)
{
	struct insula_lending *lending = window->lender->lending;
	u32 i;

	insula_lending_lock(lending);
	for (i = stretch.first; i < stretch.first + stretch.count; i++) {
		if (window->pfns[i] && lost)
			get_page(hmm_pfn_to_page(window->pfns[i]));
		window->pfns[i] = 0;
	}
	insula_lending_unlock(lending);
}

static void take_back(struct window *window, struct stretch stretch)
{
	struct lender *lender = window->lender;
	struct insula_frames frames = {
		.start = address_of(window, stretch.first),
		.size = (u64)stretch.count << PAGE_SHIFT,
		.lender = lender->number,
	};
	int err = insula_lending_take(lender->lending, &frames, lender->patience_ms);

	forget(window, stretch, err == -EIO);
	if (err)
		insula_node_unresponsive(lender->node, lender->lending);
}

/* Until this returns the base leaves what is mapped there as it is. */
static bool invalidate(struct mmu_interval_notifier *notifier,
		       const struct mmu_notifier_range *range, unsigned long sequence)
{
	struct window *window = container_of(notifier, struct window, notifier);
	struct stretch stretch = stretch_of(window, range->start, range->end);
	struct insula_lending *lending = window->lender->lending;
	bool lent;

	if (mmu_notifier_range_blockable(range))
		insula_lending_lock(lending);
	else if (!insula_lending_trylock(lending))
		return false;
	mmu_interval_set_seq(notifier, sequence);
	lent = is_lent(window, stretch);
	insula_lending_unlock(lending);
	if (!lent)
		return true;
	if (!mmu_notifier_range_blockable(range))
		return false;
	take_back(window, stretch);
	return true;
}

static const struct mmu_interval_notifier_ops notifier_ops = {
	.invalidate = invalidate,
};

static struct window *add_window(struct lender *lender, unsigned long start)
{
	struct window *window = kvzalloc(sizeof(*window), GFP_KERNEL);
	int err;

	if (!window)
		return ERR_PTR(-ENOMEM);
	window->lender = lender;
	window->start = start;
	err = mmu_interval_notifier_insert(&window->notifier, lender->mm, start, WINDOW,
					   &notifier_ops);
	if (err)
		goto free;
	err = xa_err(xa_store(&lender->windows, start / WINDOW, window, GFP_KERNEL));
	if (!err)
		return window;
	mmu_interval_notifier_remove(&window->notifier);
free:
	kvfree(window);
	return ERR_PTR(err);
}

static struct window *window_at(struct lender *lender, unsigned long address)
{
	struct window *window = xa_load(&lender->windows, address / WINDOW);

	return window ? window : add_window(lender, ALIGN_DOWN(address, WINDOW));
}

static void take_back_if_lent(struct window *window, struct stretch stretch)
{
	bool lent;

	insula_lending_lock(window->lender->lending);
	lent = is_lent(window, stretch);
	insula_lending_unlock(window->lender->lending);
	if (lent)
		take_back(window, stretch);
}

static void remove_window(struct window *window)
{
	take_back_if_lent(window, (struct stretch) { .count = WINDOW_PAGES });
	mmu_interval_notifier_remove(&window->notifier);
	xa_erase(&window->lender->windows, window->start / WINDOW);
	kvfree(window);
}

/*
 * The node may write a page without the base's noticing. Of files' pages the base's own
 * mapping has been made writable, and so they are known as dirty; of others not always.
 */
static void note_dirty(unsigned long pfn)
{
	struct folio *folio = page_folio(hmm_pfn_to_page(pfn));

	if (folio_test_swapbacked(folio) && !folio_test_dirty(folio))
		folio_mark_dirty(folio);
}

/* As many pages as can be told at once, as runs; how many pages. */
static u32 gather(struct lender *lender, const unsigned long *pfns, u32 count, u8 *runs)
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
		if (*runs == ARRAY_SIZE(lender->runs))
			break;
		run = &lender->runs[(*runs)++];
		*run = (struct insula_pages) {
			.start = start,
			.count = 1,
			.right = INSULA_GRANTED,
		};
	}
	return i;
}

/* Lending's lock held: what lies there is not about to change. */
static int hand_over(struct window *window, struct stretch stretch, u32 flags)
{
	struct lender *lender = window->lender;
	u32 end = stretch.first + stretch.count, from = stretch.first, some, i;
	struct insula_frames frames = {
		.lender = lender->number,
		.flags = flags,
	};
	u8 runs;
	int err;

	insula_lending_assert_locked(lender->lending);
	for (; from < end; from += some) {
		some = gather(lender, lender->pfns + from, end - from, &runs);
		frames.start = address_of(window, from);
		frames.size = (u64)some << PAGE_SHIFT;
		err = insula_lending_grant(lender->lending, &frames, lender->runs, runs);
		if (err)
			return err;
		for (i = from; i < from + some; i++) {
			window->pfns[i] = lender->pfns[i];
			if (flags & INSULA_FRAMES_WRITABLE)
				note_dirty(lender->pfns[i]);
		}
	}
	return 0;
}

/* -EBUSY, -EAGAIN: once more. */
static int try_to_grant(struct window *window, struct stretch stretch, u32 flags)
{
	struct lender *lender = window->lender;
	struct hmm_range range = {
		.notifier = &window->notifier,
		.start = address_of(window, stretch.first),
		.end = address_of(window, stretch.first + stretch.count),
		.hmm_pfns = lender->pfns + stretch.first,
		.default_flags = HMM_PFN_REQ_FAULT,
	};
	int err;

	if (flags & INSULA_FRAMES_WRITABLE)
		range.default_flags |= HMM_PFN_REQ_WRITE;
	range.notifier_seq = mmu_interval_read_begin(&window->notifier);
	mmap_read_lock(lender->mm);
	err = hmm_range_fault(&range);
	mmap_read_unlock(lender->mm);
	if (err)
		return err;
	insula_lending_lock(lender->lending);
	err = mmu_interval_read_retry(&window->notifier, range.notifier_seq) ? -EBUSY :
	      hand_over(window, stretch, flags);
	insula_lending_unlock(lender->lending);
	return err;
}

static int grant_in(struct window *window, struct stretch stretch, u32 flags)
{
	unsigned long deadline = jiffies + GRANT_PATIENCE;
	int err;

	for (;;) {
		err = try_to_grant(window, stretch, flags);
		if (err != -EBUSY && err != -EAGAIN)
			return err;
		if (fatal_signal_pending(current))
			return -EINTR;
		if (time_after(jiffies, deadline))
			return -EBUSY;
		cond_resched();
	}
}

/* Grant what of [at, end) lies in one window: the physical addresses, and how many pages. */
static int grant_some(struct lender *lender, u64 at, u64 end, u32 flags, u64 *pages)
{
	struct window *window = window_at(lender, at);
	struct stretch stretch;
	u32 i;
	int err;

	lockdep_assert_held(&lender->calls);
	if (IS_ERR(window))
		return PTR_ERR(window);
	stretch = stretch_of(window, at, end);
	err = grant_in(window, stretch, flags);
	if (err)
		return err;
	for (i = 0; i < stretch.count; i++)
		pages[i] = PFN_PHYS(lender->pfns[stretch.first + i] & ~HMM_PFN_FLAGS);
	return stretch.count;
}

/*
 * A window at a time. The caller's memory may come from a node, even from this one, which is
 * not waited for with the lock.
 */
static int grant_all(struct lender *lender, const struct insula_frames_grant *grant, u64 *pages)
{
	u64 __user *to = u64_to_user_ptr(grant->pages);
	u64 done, all = grant->size >> PAGE_SHIFT, told;
	int count;

	for (done = 0; done < all; done += count) {
		if (fatal_signal_pending(current) || mutex_lock_killable(&lender->calls))
			return -EINTR;
		count = grant_some(lender, grant->address + (done << PAGE_SHIFT),
				   grant->address + grant->size, grant->flags, pages);
		mutex_unlock(&lender->calls);
		if (count < 0)
			return count;
		told = done < grant->capacity ? min_t(u64, count, grant->capacity - done) : 0;
		if (copy_to_user(&to[done], pages, told * sizeof(*pages)))
			return -EFAULT;
	}
	return 0;
}

static bool range_valid(u64 address, u64 size)
{
	return size && !((address | size) & ~PAGE_MASK) && address < TASK_SIZE_MAX &&
	       size <= TASK_SIZE_MAX - address;
}

static int ioctl_grant(struct lender *lender, void __user *argument)
{
	struct insula_frames_grant grant;
	u64 *pages;
	int err;

	if (copy_from_user(&grant, argument, sizeof(grant)))
		return -EFAULT;
	if (grant.flags & ~INSULA_FRAMES_WRITABLE || !range_valid(grant.address, grant.size))
		return -EINVAL;
	err = insula_lending_connect(lender->lending);
	if (err)
		return err;
	pages = kmalloc_array(WINDOW_PAGES, sizeof(*pages), GFP_KERNEL);
	if (!pages)
		return -ENOMEM;
	if (mmget_not_zero(lender->mm)) {
		err = grant_all(lender, &grant, pages);
		mmput(lender->mm);
	} else {
		err = -ESRCH;
	}
	kfree(pages);
	return err;
}

static int ioctl_take(struct lender *lender, void __user *argument)
{
	struct insula_frames_take take;
	unsigned long index;
	struct window *window;
	u64 end;

	if (copy_from_user(&take, argument, sizeof(take)))
		return -EFAULT;
	if (!range_valid(take.address, take.size))
		return -EINVAL;
	end = take.address + take.size;
	if (mutex_lock_killable(&lender->calls))
		return -EINTR;
	xa_for_each_range(&lender->windows, index, window, take.address / WINDOW,
			  (end - 1) / WINDOW) {
		if (take.address <= window->start && window->start + WINDOW <= end)
			remove_window(window);
		else
			take_back_if_lent(window, stretch_of(window, take.address, end));
	}
	mutex_unlock(&lender->calls);
	return 0;
}

static long lender_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	switch (command) {
	case INSULA_FRAMES_GRANT:
		return ioctl_grant(file->private_data, (void __user *)argument);
	case INSULA_FRAMES_TAKE:
		return ioctl_take(file->private_data, (void __user *)argument);
	default:
		return -ENOTTY;
	}
}

static void free_lender(struct lender *lender)
{
	struct window *window;
	unsigned long index;

	xa_for_each(&lender->windows, index, window)
		remove_window(window);
	xa_destroy(&lender->windows);
	mmdrop(lender->mm);
	insula_lending_put(lender->lending);
	insula_node_put(lender->node);
	kvfree(lender);
}

static int lender_release(struct inode *inode, struct file *file)
{
	free_lender(file->private_data);
	return 0;
}

static const struct file_operations lender_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = lender_ioctl,
	.release = lender_release,
};

static struct lender *new_lender(struct insula_node *node, u32 patience_ms)
{
	struct lender *lender = kvzalloc(sizeof(*lender), GFP_KERNEL);

	if (!lender)
		return NULL;
	insula_lending_get(node->lending);
	lender->lending = node->lending;
	kref_get(&node->refs);
	lender->node = node;
	mmgrab(current->mm);
	lender->mm = current->mm;
	lender->number = insula_lending_number(node->lending);
	lender->patience_ms = patience_ms;
	mutex_init(&lender->calls);
	xa_init(&lender->windows);
	return lender;
}

/* What is lent to the node in this life of it, from the first who lends on. */
static int prepare(struct insula_node *node)
{
	struct insula_lending *lending;

	lockdep_assert_held(&node->lock);
	if (node->state != INSULA_RUNNING)
		return -EPIPE;
	if (!node->area)
		return -ENOENT;
	if (node->lending)
		return 0;
	lending = insula_lending_create(node->area);
	if (IS_ERR(lending))
		return PTR_ERR(lending);
	WRITE_ONCE(node->lending, lending);
	return 0;
}

static struct lender *begin(struct insula_node *node, u32 patience_ms)
{
	int err = insula_node_lock(node);
	struct lender *lender;

	if (err)
		return ERR_PTR(err);
	err = prepare(node);
	lender = err ? ERR_PTR(err) : new_lender(node, patience_ms);
	mutex_unlock(&node->lock);
	return lender ?: ERR_PTR(-ENOMEM);
}

int insula_lender_create(struct insula_node *node, void __user *argument)
{
	struct insula_lend lend;
	struct lender *lender;
	struct file *file;

	if (copy_from_user(&lend, argument, sizeof(lend)))
		return -EFAULT;
	if (lend.patience_ms < INSULA_LEND_PATIENCE_MIN_MS ||
	    lend.patience_ms > INSULA_LEND_PATIENCE_MAX_MS)
		return -EINVAL;
	lender = begin(node, lend.patience_ms);
	if (IS_ERR(lender))
		return PTR_ERR(lender);
	lend.lender = lender->number;
	if (copy_to_user(argument, &lend, sizeof(lend))) {
		free_lender(lender);
		return -EFAULT;
	}
	file = insula_file_create("[insula-lender]", &lender_fops, lender);
	if (IS_ERR(file)) {
		free_lender(lender);
		return PTR_ERR(file);
	}
	return insula_file_install(file);
}
