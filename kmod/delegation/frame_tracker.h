/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_FRAME_TRACKER_H
#define INSULA_FRAME_TRACKER_H

#include <linux/mm_types.h>
#include <linux/xarray.h>

/*
 * Tracks which frames of a program this kernel has mapped, and so which may be pinned (by a
 * reference of I/O under way or of a pipe). A frame is tracked by its address while it is
 * mapped, and by its number after it is unmapped: the program may have moved it elsewhere by
 * then. Frames may be added concurrently, everything else is exclusive: the caller locks.
 */
struct insula_frame_tracker {
	struct xarray windows;	/* of mapped frames, by address */
	struct xarray pinned;	/* frames unmapped while pinned, by frame number */
};

void insula_frame_tracker_init(struct insula_frame_tracker *tracker);

/* Record a page that is about to be mapped at an address. -ENOMEM. */
int insula_frame_tracker_add(struct insula_frame_tracker *tracker, u64 address, struct page *page);

/*
 * Find the next addresses before `end`, from *from on, that may have mapped frames: from *from to
 * before *to, whole windows. False: there are none.
 */
bool insula_frame_tracker_next(struct insula_frame_tracker *tracker, u64 *from, u64 *to, u64 end);

/* [start, end) was unmapped: drop its frames that are not pinned, keep the others. */
void insula_frame_tracker_unmapped(struct insula_frame_tracker *tracker, u64 start, u64 end);

/*
 * Whether a frame is pinned that was not waited for in vain before. With `give_up` all pinned
 * frames count as waited for.
 */
bool insula_frame_tracker_poll_pinned(struct insula_frame_tracker *tracker, bool give_up);

/*
 * Append the physical addresses of all frames that are still pinned to a list with `count`
 * entries and room for `capacity`; drop the other frames. Returns `count` plus their number.
 */
u64 insula_frame_tracker_list_pinned(struct insula_frame_tracker *tracker, u64 *list, u64 count,
				     u64 capacity);

/* Free the tracker's memory. */
void insula_frame_tracker_destroy(struct insula_frame_tracker *tracker);

#endif
