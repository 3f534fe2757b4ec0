/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_BASE_FRAMES_H
#define INSULA_BASE_FRAMES_H

#include <linux/mm.h>
#include <linux/types.h>
#include <linux/xarray.h>

struct insula_nested_table;

/* Pages whose entries are in one table: 2 MiB. */
#define INSULA_BASE_WINDOW_PAGES	(PAGE_SIZE / sizeof(u64))
#define INSULA_BASE_WINDOW_SIZE		(INSULA_BASE_WINDOW_PAGES * PAGE_SIZE)

/* Of each page that has an entry, a record (frame_record.h); else 0. */
struct insula_base_window {
	unsigned long frames[INSULA_BASE_WINDOW_PAGES];
};

/*
 * Frames of the base of which a program's page table has entries, by the program's addresses; a
 * confined node may access them as long as they are here. The caller locks, where not said
 * otherwise.
 */
struct insula_base_frames {
	struct insula_nested_table *nested;	/* of a confined node, else NULL */
	struct xarray windows;			/* by address / INSULA_BASE_WINDOW_SIZE */
};

void insula_base_frames_init(struct insula_base_frames *frames,
			     struct insula_nested_table *nested);

/* The node can access none of them any more on return. Not locked. Sleeps. */
void insula_base_frames_destroy(struct insula_base_frames *frames);

/*
 * Allocate what adding `count` frames, as HMM found them, at and near an address needs. Returns the
 * address's window. Not locked. An ERR_PTR as of insula_frame_records_prepare().
 */
struct insula_base_window *insula_base_frames_reserve(struct insula_base_frames *frames,
						      u64 address, const unsigned long *found,
						      u64 count);

/* A frame gets an entry, or a writable one: see insula_frame_record_add(). */
int insula_base_frames_add(struct insula_base_frames *frames, unsigned long *place,
			   unsigned long found, bool writable);

/*
 * A confined node may not access the frames of a range any more. Whether one was there: then the
 * node may still do so until insula_nested_table_flush().
 */
bool insula_base_frames_revoke(struct insula_base_frames *frames, u64 start, u64 end);

/* Nothing uses those of a range any more. If they are `lost`, leak them. */
void insula_base_frames_forget(struct insula_base_frames *frames, u64 start, u64 end, bool lost);

#endif
