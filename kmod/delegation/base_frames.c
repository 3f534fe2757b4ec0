// SPDX-License-Identifier: GPL-2.0-only
/*
 * Records of the base's frames in a program's page table, in windows of addresses.
 */
#include "delegation/base_frames.h"

#include <linux/err.h>
#include <linux/minmax.h>
#include <linux/slab.h>

#include "node/frame_record.h"
#include "node/nested_table.h"

void insula_base_frames_init(struct insula_base_frames *frames, struct insula_nested_table *nested)
{
	frames->nested = nested;
	xa_init(&frames->windows);
}

void insula_base_frames_destroy(struct insula_base_frames *frames)
{
	struct insula_base_window *window;
	unsigned long index;

	if (insula_base_frames_revoke(frames, 0, U64_MAX))
		insula_nested_table_flush(frames->nested);
	xa_for_each(&frames->windows, index, window)
		kfree(window);
	xa_destroy(&frames->windows);
}

static struct insula_base_window *base_frames_window(struct insula_base_frames *frames, u64 address)
{
	unsigned long index = address / INSULA_BASE_WINDOW_SIZE;
	struct insula_base_window *window = xa_load(&frames->windows, index), *other;

	if (window)
		return window;
	window = kzalloc(sizeof(*window), GFP_KERNEL);
	if (!window)
		return ERR_PTR(-ENOMEM);
	/* Another thread may have been faster. */
	other = xa_cmpxchg(&frames->windows, index, NULL, window, GFP_KERNEL);
	if (!other)
		return window;
	kfree(window);
	return xa_is_err(other) ? ERR_PTR(-ENOMEM) : other;
}

struct insula_base_window *insula_base_frames_reserve(struct insula_base_frames *frames,
						      u64 address, const unsigned long *found,
						      u64 count)
{
	int err = insula_frame_records_prepare(frames->nested, found, count);

	return err ? ERR_PTR(err) : base_frames_window(frames, address);
}

int insula_base_frames_add(struct insula_base_frames *frames, unsigned long *place,
			   unsigned long found, bool writable)
{
	return insula_frame_record_add(frames->nested, place, found, writable);
}

/* The places of a window in [start, end): from *first to before the one returned. */
static u64 base_frames_places(u64 window_start, u64 start, u64 end, u64 *first)
{
	*first = (max(start, window_start) - window_start) >> PAGE_SHIFT;
	return (min(end, window_start + INSULA_BASE_WINDOW_SIZE) - window_start) >> PAGE_SHIFT;
}

bool insula_base_frames_revoke(struct insula_base_frames *frames, u64 start, u64 end)
{
	struct insula_base_window *window;
	unsigned long index;
	bool any = false;
	u64 at, last;

	if (!frames->nested)
		return false;
	xa_for_each_range(&frames->windows, index, window, start / INSULA_BASE_WINDOW_SIZE,
			  (end - 1) / INSULA_BASE_WINDOW_SIZE) {
		last = base_frames_places(index * INSULA_BASE_WINDOW_SIZE, start, end, &at);
		for (; at < last; at++)
			any |= insula_frame_record_revoke(frames->nested, &window->frames[at]);
	}
	return any;
}

void insula_base_frames_forget(struct insula_base_frames *frames, u64 start, u64 end, bool lost)
{
	struct insula_base_window *window;
	unsigned long index;
	u64 at, last;

	xa_for_each_range(&frames->windows, index, window, start / INSULA_BASE_WINDOW_SIZE,
			  (end - 1) / INSULA_BASE_WINDOW_SIZE) {
		last = base_frames_places(index * INSULA_BASE_WINDOW_SIZE, start, end, &at);
		for (; at < last; at++)
			insula_frame_record_forget(&window->frames[at], lost);
	}
}
