// SPDX-License-Identifier: GPL-2.0-only
/*
 * Base mappings: a program's page table follows that of its proxy, where the proxy maps files
 * and devices of the base, or what it had as a process of the base (insula_lwk.h).
 *
 * An interval notifier covers the program's part of the proxy. A page is faulted in as an
 * access of the proxy, found with its neighbours by hmm_range_fault(), and its entry stored
 * under the lock, if the base has not begun to change the range meanwhile. No reference to the
 * page is held. When the base is about to change a range, the callback clears the entries, and
 * returns once no core of the node uses the pages any more.
 *
 * What the node's memory says is not trusted: which pages have entries is recorded here.
 */
#include "delegation/base_mapping.h"

#include <linux/bits.h>
#include <linux/err.h>
#include <linux/hmm.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "arch/x86/page_table.h"
#include "compat/compat.h"
#include "delegation/fault_around.h"
#include "delegation/mirror.h"
#include "delegation/shootdown.h"
#include "insula_lwk.h"
#include "node/nested_table.h"

#define WINDOW_PAGES	INSULA_BASE_WINDOW_PAGES
#define WINDOW_SIZE	INSULA_BASE_WINDOW_SIZE
/* Pages mapped and looked up at once: more than the base itself maps. A power of two. */
#define AROUND_PAGES	64

/* Pages that are present in the proxy around one that is faulted in. */
struct base_pages {
	struct hmm_range range;
	unsigned long frames[AROUND_PAGES];
	u64 address;		/* of that one */
	u64 access;
	bool is_device;		/* frames without ordinary pages */
	pgprot_t protection;	/* of the VMA: caching */
};

void insula_base_mappings_init(struct insula_base_mappings *base,
			       struct insula_nested_table *nested)
{
	mutex_init(&base->lock);
	insula_base_frames_init(&base->frames, nested);
	/* Memory reclaim may take the lock: teach lockdep before that happens. */
	fs_reclaim_acquire(GFP_KERNEL);
	might_lock(&base->lock);
	fs_reclaim_release(GFP_KERNEL);
}

static struct insula_mirror *base_mirror(struct insula_base_mappings *base)
{
	return container_of(base, struct insula_mirror, base);
}

/* Clear the entries of a window in [start, end). Whether any page there has, or just had, one. */
static bool base_clear_window(struct insula_base_mappings *base, struct insula_base_window *window,
			      u64 window_start, u64 start, u64 end)
{
	struct file *memory = insula_slots_memory(base_mirror(base)->slots);
	u64 from = (max(start, window_start) - window_start) >> PAGE_SHIFT;
	u64 to = (min(end, window_start + WINDOW_SIZE) - window_start) >> PAGE_SHIFT;
	bool any = false;
	u64 i, *table;

	lockdep_assert_held(&base->lock);
	table = base->ended ? NULL : insula_page_table(memory, base->page_table, window_start);
	for (i = from; i < to; i++) {
		if (!window->frames[i])
			continue;
		any = true;
		if (table && READ_ONCE(table[i]) & INSULA_LWK_PTE_BASE)
			xchg(&table[i], 0);
	}
	return any;
}

/* Clear the entries in a range. Whether a shootdown is needed. */
static bool base_clear(struct insula_base_mappings *base, u64 start, u64 end)
{
	struct insula_base_window *window;
	unsigned long index;
	bool any = false;

	xa_for_each_range(&base->frames.windows, index, window, start / WINDOW_SIZE,
			  (end - 1) / WINDOW_SIZE)
		any |= base_clear_window(base, window, index * WINDOW_SIZE, start, end);
	return any;
}

/*
 * Wait until no core of the node uses the pages in a range, whose entries were cleared. A confined
 * node cannot use them then, whatever it does: its kernel is only waited for, lest what it is doing
 * becomes a violation. Until the range is forgotten, others that invalidate it wait, too.
 */
static void base_quiesce(struct insula_base_mappings *base, u64 start, u64 end)
{
	struct insula_slots *slots = base_mirror(base)->slots;
	bool lost = insula_shootdown(slots, base->page_table) == -EIO, revoked;

	mutex_lock(&base->lock);
	revoked = insula_base_frames_revoke(&base->frames, start, end);
	mutex_unlock(&base->lock);
	if (revoked)
		lost |= insula_nested_table_flush(base->frames.nested) == -EIO;
	mutex_lock(&base->lock);
	insula_base_frames_forget(&base->frames, start, end, lost);
	mutex_unlock(&base->lock);
}

/* The base is about to change [start, end), and keeps it unchanged until this returns. */
static bool base_invalidate(struct mmu_interval_notifier *notifier,
			    const struct mmu_notifier_range *range, unsigned long sequence)
{
	struct insula_base_mappings *base = container_of(notifier, struct insula_base_mappings,
							 notifier);
	struct insula_mirror *mirror = base_mirror(base);
	u64 start = max_t(u64, range->start, mirror->start);
	u64 end = min_t(u64, range->end, mirror->end);
	bool any;

	if (mmu_notifier_range_blockable(range))
		mutex_lock(&base->lock);
	else if (!mutex_trylock(&base->lock))
		return false;
	mmu_interval_set_seq(notifier, sequence);
	any = start < end && base_clear(base, start, end);
	mutex_unlock(&base->lock);
	if (!any)
		return true;
	/* Entries are cleared, so that a later call has less to wait for. */
	if (!mmu_notifier_range_blockable(range))
		return false;
	base_quiesce(base, start, end);
	return true;
}

static const struct mmu_interval_notifier_ops base_ops = {
	.invalidate = base_invalidate,
};

int insula_base_mappings_follow(struct insula_mirror *mirror)
{
	struct mmu_interval_notifier *notifier = &mirror->base.notifier;
	int err = mmu_interval_notifier_insert(notifier, current->mm, mirror->start,
					       mirror->end - mirror->start, &base_ops);

	if (err)
		notifier->mm = NULL;
	else
		smp_store_release(&mirror->base.follows, true); /* the mirror's mm stays */
	return err;
}

void insula_base_mappings_end(struct insula_base_mappings *base)
{
	mutex_lock(&base->lock);
	base->ended = true;
	mutex_unlock(&base->lock);
}

void insula_base_mappings_destroy(struct insula_base_mappings *base)
{
	if (base->notifier.mm)
		mmu_interval_notifier_remove(&base->notifier);
	base->notifier.mm = NULL;
	insula_base_frames_destroy(&base->frames);
}

/* The base mapping of an address in the proxy, or NULL. mmap_lock held. */
static struct vm_area_struct *base_mapping_at(struct mm_struct *mm, u64 address)
{
	struct vm_area_struct *vma = find_vma(mm, address);

	if (!vma || vma->vm_start > address || insula_mirror_is_vma(vma))
		return NULL;
	return vma;
}

/*
 * Fault the page in as an access of the proxy. A page that is written is dirty from here on.
 * -ENXIO: there is no base mapping.
 */
static int base_fault(struct insula_mirror *mirror, u64 address, u64 access)
{
	unsigned int flags = access & INSULA_LWK_ACCESS_WRITE ? FAULT_FLAG_WRITE : 0;
	struct mm_struct *mm = mirror->mm;
	u64 around = ALIGN_DOWN(address, AROUND_PAGES * PAGE_SIZE);
	struct vm_area_struct *vma;
	bool unlocked = false;
	int err = -ENXIO;

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	vma = base_mapping_at(mm, address);
	if (vma)
		err = fixup_user_fault(mm, address, flags, &unlocked);
	if (!err && !unlocked && !flags)
		insula_fault_around(vma, around, around + AROUND_PAGES * PAGE_SIZE);
	mmap_read_unlock(mm);
	return err;
}

/* A frame that a driver has mapped at an address, as HMM would have found it; 0: none. */
static unsigned long base_device_frame(struct vm_area_struct *vma, u64 address, bool may_write)
{
	unsigned long frame;
	bool writable;

	if (insula_follow_pfn(vma, address, &frame, &writable))
		return 0;
	return frame | HMM_PFN_VALID | (writable && may_write ? HMM_PFN_WRITE : 0);
}

/*
 * Find the frames around the address in memory that a driver has mapped. The driver may want to
 * know of the first write to each: so others than the one faulted in are only read.
 */
static void base_look_up_device(struct base_pages *pages, struct vm_area_struct *vma)
{
	u64 address = pages->range.start, i;

	for (i = 0; address < pages->range.end; i++, address += PAGE_SIZE)
		pages->frames[i] = base_device_frame(vma, address, address == pages->address);
}

/* Find the present pages around the address, in its VMA. -EBUSY: retry. */
static int base_look_up_vma(struct base_pages *pages, struct vm_area_struct *vma)
{
	u64 first = ALIGN_DOWN(pages->address, AROUND_PAGES * PAGE_SIZE);

	pages->range.start = max_t(u64, first, vma->vm_start);
	pages->range.end = min_t(u64, first + AROUND_PAGES * PAGE_SIZE, vma->vm_end);
	pages->protection = vma->vm_page_prot;
	pages->is_device = vma->vm_flags & (VM_PFNMAP | VM_IO);
	if (!pages->is_device)
		return hmm_range_fault(&pages->range);
	base_look_up_device(pages, vma);
	return 0;
}

/* Find the page of the address, and more. -EBUSY: retry. */
static int base_look_up(struct insula_mirror *mirror, struct base_pages *pages)
{
	struct mm_struct *mm = mirror->mm;
	struct vm_area_struct *vma;
	int err = -ENXIO;

	memset(pages->frames, 0, sizeof(pages->frames));
	pages->range = (struct hmm_range) {
		.notifier = &mirror->base.notifier,
		.notifier_seq = mmu_interval_read_begin(&mirror->base.notifier),
		.hmm_pfns = pages->frames,
	};
	if (mmap_read_lock_killable(mm))
		return -EINTR;
	vma = base_mapping_at(mm, pages->address);
	if (vma)
		err = base_look_up_vma(pages, vma);
	mmap_read_unlock(mm);
	return err;
}

/* Whether the page itself was found: 0, -EBUSY if it is gone again, -EFAULT if it is no memory. */
static int base_check(const struct base_pages *pages)
{
	unsigned long frame = pages->frames[(pages->address - pages->range.start) >> PAGE_SHIFT];

	if (frame & HMM_PFN_ERROR)
		return -EFAULT;
	if (!(frame & HMM_PFN_VALID))
		return -EBUSY;
	return pages->access & INSULA_LWK_ACCESS_WRITE && !(frame & HMM_PFN_WRITE) ? -EBUSY : 0;
}

/*
 * The node may write a page unnoticed by the base. Page cache is dirty already, since the base's
 * own mapping was made writable; swap-backed pages may not be, nor those that MADV_FREE gave up,
 * which are anonymous.
 */
static void base_mark_dirty(unsigned long frame)
{
	struct folio *folio = page_folio(hmm_pfn_to_page(frame));

	if ((folio_test_swapbacked(folio) || folio_test_anon(folio)) && !folio_test_dirty(folio))
		folio_mark_dirty(folio);
}

static bool base_is_writable(const struct base_pages *pages, unsigned long frame)
{
	return pages->access & INSULA_LWK_ACCESS_WRITE && frame & HMM_PFN_WRITE;
}

/* Store the entry of a page, unless one is there that permits as much. */
static void base_store_entry(const struct base_pages *pages, unsigned long frame, u64 *place)
{
	bool writable = base_is_writable(pages, frame);
	u64 old = READ_ONCE(*place);
	u64 entry;

	entry = insula_page_table_entry(PFN_PHYS(frame & ~HMM_PFN_FLAGS), pages->protection,
					writable, pages->access & INSULA_LWK_ACCESS_EXECUTE);
	/* What is not the base's is the node's own. */
	if (old && (!(old & INSULA_LWK_PTE_BASE) || (!writable && !((old ^ entry) & PAGE_MASK))))
		return;
	if (writable && !pages->is_device)
		base_mark_dirty(frame);
	cmpxchg(place, old, entry | INSULA_LWK_PTE_BASE);
}

/* Record the pages found, and store their entries in `table`. Lock held. */
static int base_store_all(struct insula_mirror *mirror, struct insula_base_window *window,
			  const struct base_pages *pages, u64 *table)
{
	u64 count = (pages->range.end - pages->range.start) >> PAGE_SHIFT, i, at;
	unsigned long frame;
	int err;

	for (i = 0; i < count; i++) {
		frame = pages->frames[i];
		if (!(frame & HMM_PFN_VALID))
			continue;
		at = (pages->range.start / PAGE_SIZE + i) % WINDOW_PAGES;
		err = insula_base_frames_add(&mirror->base.frames, &window->frames[at], frame,
					     base_is_writable(pages, frame));
		if (!err)
			base_store_entry(pages, frame, &table[at]);
		else if (pages->range.start + i * PAGE_SIZE == pages->address)
			return err;
	}
	return 0;
}

/* Store the entries of the pages found. -EAGAIN: there is no table for them. Lock held. */
static int base_store(struct insula_mirror *mirror, struct insula_base_window *window,
		      const struct base_pages *pages)
{
	struct insula_lwk_process *process = insula_slots_process(mirror->slots, mirror->process);
	u64 *table;

	lockdep_assert_held(&mirror->base.lock);
	if (mirror->base.ended)
		return -EPIPE;
	mirror->base.page_table = READ_ONCE(process->page_table);
	table = insula_page_table(insula_slots_memory(mirror->slots), mirror->base.page_table,
				  pages->range.start);
	return table ? base_store_all(mirror, window, pages, table) : -EAGAIN;
}

/* -EBUSY: retry. */
static int base_fault_in_once(struct insula_mirror *mirror, struct base_pages *pages)
{
	int err = base_fault(mirror, pages->address, pages->access);
	struct insula_base_window *window;

	if (!err)
		err = base_look_up(mirror, pages);
	if (!err)
		err = base_check(pages);
	if (err)
		return err;
	window = insula_base_frames_reserve(&mirror->base.frames, pages->address, pages->frames,
					    (pages->range.end - pages->range.start) >> PAGE_SHIFT);
	if (IS_ERR(window))
		return PTR_ERR(window);
	mutex_lock(&mirror->base.lock);
	err = mmu_interval_read_retry(&mirror->base.notifier, pages->range.notifier_seq) ?
		-EBUSY : base_store(mirror, window, pages);
	mutex_unlock(&mirror->base.lock);
	return err;
}

/* Fault a page in where the mirror's proxy has a base mapping. -ENXIO: it has none. */
static int base_fault_in(struct insula_mirror *mirror, const struct insula_mirror_fault_in *request)
{
	struct base_pages pages;
	int err;

	if (request->address < mirror->start || request->address >= mirror->end)
		return -EINVAL;
	pages.address = request->address & PAGE_MASK;
	pages.access = request->access;
	do {
		err = base_fault_in_once(mirror, &pages);
		if (err == -EBUSY && fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	} while (err == -EBUSY);
	return err;
}

/* A process that shares a page table. */
struct base_sharer {
	u64 process;
	struct insula_mirror *mirror;	/* its mirror, held; NULL: it does not share it */
};

static void base_find_sharer(struct insula_slots_user *user, void *data)
{
	struct insula_mirror *mirror = insula_mirror_of(user);
	struct base_sharer *sharer = data;

	if (user->process == sharer->process &&
	    smp_load_acquire(&mirror->base.follows) && /* its mm */
	    insula_mirror_get(mirror))
		sharer->mirror = mirror;
}

/* Fault a page in where the proxy of another process has the base mapping. */
static int base_fault_in_sharer(struct insula_mirror *mirror,
				const struct insula_mirror_fault_in *request)
{
	struct base_sharer sharer = { .process = request->owner };
	int err = -ENXIO;

	insula_slots_visit_sharers(mirror->slots, mirror->process, base_find_sharer, &sharer);
	if (!sharer.mirror)
		return err;
	if (mmget_not_zero(sharer.mirror->mm)) {
		err = base_fault_in(sharer.mirror, request);
		mmput(sharer.mirror->mm);
	}
	insula_mirror_put(sharer.mirror);
	return err;
}

int insula_mirror_fault_in(struct insula_mirror *mirror, void __user *argument)
{
	struct insula_mirror_fault_in request;
	int err;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (request.access & ~(INSULA_LWK_ACCESS_WRITE | INSULA_LWK_ACCESS_EXECUTE))
		return -EINVAL;
	err = base_fault_in(mirror, &request);
	if (err == -ENXIO && request.owner != mirror->process)
		err = base_fault_in_sharer(mirror, &request);
	return err == -ENXIO ? -EFAULT : err;
}
