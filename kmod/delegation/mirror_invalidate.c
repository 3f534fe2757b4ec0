// SPDX-License-Identifier: GPL-2.0-only
/*
 * Invalidation of ranges of mm mirrors: pages are unmapped from the proxies of a program and of
 * its mm sharers, and those that I/O still pins are reported to its kernel.
 */
#include "insula_module.h"

#include <linux/delay.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "delegation/mirror.h"
#include "insula_lwk.h"

/*
 * How long an invalidation waits for I/O that pins pages: most ends by then, and so its pages
 * need not be quarantined. It waits once for each page.
 */
#define PINNED_WAIT_MS	2

/* An invalidation of a range, in a mirror and its mm sharers. */
struct invalidation {
	const struct insula_mirror_invalidate *range;
	bool give_up;		/* stop waiting for pinned pages */
	bool fresh;		/* a page is pinned that has not been waited for yet */
	u64 *pinned;		/* pinned frames, up to INSULA_LWK_PINNED_MAX */
	u64 count;		/* number of all of them */
};

/* Unmapping the whole range would scan each page table in it, also for a single page. */
static void mirror_unmap_tracked(struct insula_mirror *mirror, u64 from, u64 end)
{
	u64 to;

	for (; insula_frame_tracker_next(&mirror->tracker, &from, &to, end); from = to)
		unmap_mapping_range(mirror->mapping, from, to - from, 1);
}

static void mirror_invalidate_unmap(struct insula_slots_user *user, void *data)
{
	struct insula_mirror *mirror = insula_mirror_of(user);
	struct invalidation *invalidation = data;
	const struct insula_mirror_invalidate *range = invalidation->range;
	u64 end = range->start + range->size;

	mutex_lock(&mirror->tracker_lock);
	down_write(&mirror->walk_lock);
	if (mirror->mapping)
		mirror_unmap_tracked(mirror, range->start, end);
	insula_frame_tracker_unmapped(&mirror->tracker, range->start, end);
	up_write(&mirror->walk_lock);
	mutex_unlock(&mirror->tracker_lock);
}

/* Under walk_lock: the transient reference of a page being mapped would look like a pin. */
static void mirror_invalidate_poll_pinned(struct insula_slots_user *user, void *data)
{
	struct insula_mirror *mirror = insula_mirror_of(user);
	struct invalidation *invalidation = data;

	mutex_lock(&mirror->tracker_lock);
	down_write(&mirror->walk_lock);
	if (insula_frame_tracker_poll_pinned(&mirror->tracker, invalidation->give_up))
		invalidation->fresh = true;
	up_write(&mirror->walk_lock);
	mutex_unlock(&mirror->tracker_lock);
}

static void mirror_invalidate_list_pinned(struct insula_slots_user *user, void *data)
{
	struct insula_mirror *mirror = insula_mirror_of(user);
	struct invalidation *invalidation = data;

	mutex_lock(&mirror->tracker_lock);
	down_write(&mirror->walk_lock);
	invalidation->count = insula_frame_tracker_list_pinned(&mirror->tracker,
							       invalidation->pinned,
							       invalidation->count,
							       INSULA_LWK_PINNED_MAX);
	up_write(&mirror->walk_lock);
	mutex_unlock(&mirror->tracker_lock);
}

/* Call `action` for the mirror, and its sharers if the range is invalidated in all of them. */
static void mirror_invalidate_visit(struct insula_mirror *mirror,
				    struct invalidation *invalidation,
				    void (*action)(struct insula_slots_user *user, void *data))
{
	if (invalidation->range->flags & INSULA_LWK_INVALIDATE_SHARED)
		insula_slots_visit_sharers(mirror->slots, mirror->process, action, invalidation);
	else
		action(&mirror->user, invalidation);
}

/* Wait for a while until no page that this mirror or a sharer had mapped is pinned. */
static void mirror_invalidate_quiesce(struct insula_mirror *mirror,
				      struct invalidation *invalidation)
{
	ktime_t limit = ktime_add_ms(ktime_get(), PINNED_WAIT_MS);

	do {
		invalidation->give_up = ktime_after(ktime_get(), limit) ||
					fatal_signal_pending(current);
		invalidation->fresh = false;
		mirror_invalidate_visit(mirror, invalidation, mirror_invalidate_poll_pinned);
		if (invalidation->fresh)
			usleep_range(50, 200);
	} while (invalidation->fresh);
}

/* Report pinned frames to the program's kernel, and last that the invalidation is done. */
static void mirror_invalidate_report(struct insula_mirror *mirror,
				     const struct invalidation *invalidation, u64 ticket)
{
	struct insula_lwk_process *process = insula_slots_process(mirror->slots, mirror->process);
	u64 i;

	for (i = 0; i < min_t(u64, invalidation->count, INSULA_LWK_PINNED_MAX); i++)
		insula_slots_write(mirror->slots, &process->pinned[i], invalidation->pinned[i]);
	insula_slots_write(mirror->slots, &process->pinned_count, invalidation->count);
	insula_slots_write(mirror->slots, &process->invalidated, ticket);
}

static int mirror_invalidate_range(struct insula_mirror *mirror,
				   const struct insula_mirror_invalidate *range)
{
	struct invalidation invalidation = { .range = range, .pinned = mirror->pinned };

	if (mutex_lock_killable(&mirror->invalidate_lock))
		return -EINTR;
	mirror_invalidate_visit(mirror, &invalidation, mirror_invalidate_unmap);
	if (!(range->flags & INSULA_LWK_INVALIDATE_NO_QUIESCE))
		mirror_invalidate_quiesce(mirror, &invalidation);
	mirror_invalidate_visit(mirror, &invalidation, mirror_invalidate_list_pinned);
	mirror_invalidate_report(mirror, &invalidation, range->ticket);
	mutex_unlock(&mirror->invalidate_lock);
	return 0;
}

int insula_mirror_invalidate(struct insula_mirror *mirror, void __user *argument)
{
	struct insula_mirror_invalidate range;

	if (copy_from_user(&range, argument, sizeof(range)))
		return -EFAULT;
	if (range.flags & ~(INSULA_LWK_INVALIDATE_NO_QUIESCE | INSULA_LWK_INVALIDATE_SHARED) ||
	    !range.size ||
	    !PAGE_ALIGNED(range.start | range.size) || range.start < mirror->start ||
	    range.start > mirror->end || range.size > mirror->end - range.start)
		return -EINVAL;
	return mirror_invalidate_range(mirror, &range);
}
