/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * insula_frames.h - memory of the base's processes that a node uses for a while
 *
 * A process of the base lends a range of its own memory to a node, whatever lies there:
 * anonymous memory, a file's pages in the page cache, a mapping of a memory object. The
 * pages stay where and whose they are. When the base needs them back (the file is
 * truncated, the page is to be swapped out, the process unmaps it or ends), its memory
 * management waits until the node has ceased to use them.
 *
 * The two kernels agree on it by these messages, on channel INSULA_CHANNEL_FRAMES. The
 * base tells, in one order that counts:
 *
 *   GRANTED   The message's page references (insula_channel.h) are, one after the
 *             other, what lies in [start, start + size) of the lender. The node may use
 *             them from now on. What it was told of the same range before is void.
 *   TAKEN     [start, start + size) of the lender is not the node's any more, whether
 *             or not all of it has been granted. It ceases to use it: unmaps it and has
 *             forgotten the translations on all of its cores. Then it answers:
 *   RETURNED  with the number of that TAKEN. So it does in their order.
 *
 * A node that has not answered in time is stopped. Who leaves the session uses nothing.
 */
#ifndef INSULA_FRAMES_H
#define INSULA_FRAMES_H

#include <linux/types.h>

enum insula_frames_kind {
	INSULA_FRAMES_GRANTED = 1,	/* to the node */
	INSULA_FRAMES_TAKEN = 2,	/* to the node */
	INSULA_FRAMES_RETURNED = 3,	/* to the base */
};

/* The node may write the pages. */
#define INSULA_FRAMES_WRITABLE	(1U << 0)

/* What each of the messages says, behind its page references. */
struct insula_frames {
	__u64 start;		/* in the lender's numbering: an address of its process */
	__u64 size;		/* in bytes, as start a multiple of 4096 */
	__u32 lender;		/* which of those who lend to this node, never 0 */
	__u32 number;		/* of a TAKEN, counted from 1, and of its RETURNED; else 0 */
	__u32 flags;		/* of a GRANTED: INSULA_FRAMES_WRITABLE */
	__u32 reserved;
};

/* Most page references in a GRANTED. */
#define INSULA_FRAMES_RUNS_MAX	63

#endif
