/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * insula_grant.h - memory of the base's processes granted to a node
 *
 * A process of the base grants a range of its own memory to a node, whatever is mapped there:
 * anonymous memory, page cache, a memory object. The pages stay in place and keep their owner.
 * When the base needs them back (truncation, reclaim, munmap, exit), its memory management
 * waits until the node no longer uses them.
 *
 * The two kernels exchange these messages on channel INSULA_CHANNEL_GRANTS. The base sends,
 * in order:
 *
 *   GRANTED   The message's page references (insula_channel.h) are, in order, the pages of
 *             [start, start + size) of the grant table. The node may use them from now on.
 *             Earlier messages about the same range are void.
 *   REVOKING  The node must stop using [start, start + size) of the grant table, whether or
 *             not all of it is granted: it unmaps the range and flushes the TLBs of all its
 *             cores. Then it answers:
 *   REVOKED   with the sequence number of that REVOKING. REVOKEDs come in order.
 *
 * A node that misses the grant table's timeout is stopped. Leaving the session ends all use.
 */
#ifndef INSULA_GRANT_H
#define INSULA_GRANT_H

#include <linux/types.h>

enum insula_grant_kind {
	INSULA_GRANT_GRANTED = 1,	/* to the node */
	INSULA_GRANT_REVOKING = 2,	/* to the node */
	INSULA_GRANT_REVOKED = 3,	/* to the base */
};

/* The node may write the pages. */
#define INSULA_GRANT_WRITABLE	(1U << 0)

/* Body of each message, after its page references. */
struct insula_grant_message {
	__u64 start;		/* address in the granting process */
	__u64 size;		/* in bytes; like start a multiple of 4096 */
	__u32 table;		/* id of the grant table, never 0 */
	__u32 sequence;		/* of a REVOKING, from 1, and of its REVOKED; else 0 */
	__u32 flags;		/* of a GRANTED: INSULA_GRANT_WRITABLE */
	__u32 reserved;
};

/* Most page references in a GRANTED. */
#define INSULA_GRANT_RUNS_MAX	63

#endif
