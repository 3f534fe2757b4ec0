/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_FRAME_RECORD_H
#define INSULA_FRAME_RECORD_H

#include <linux/types.h>

struct insula_nested_table;

/*
 * Record of a frame of the base that a node uses: its number, with flags (frame_record.c); 0: none.
 * A confined node, with a nested page table, may access the frame from add() to revoke(), and for
 * that the frame is prepared; for another one `nested` is NULL. The caller locks each record.
 */

/* Prepare the valid ones of `count` frames as HMM found them. -ENOMEM, -EPIPE, -EFAULT. Sleeps. */
int insula_frame_records_prepare(struct insula_nested_table *nested, const unsigned long *found,
				 u64 count);

/*
 * The node uses a frame that HMM found, or writes one that it uses already. -EFAULT: it is no
 * frame of the base. -EBUSY: another one is recorded. -ENOSPC: it has too many users. -EPIPE: the
 * node has ended.
 */
int insula_frame_record_add(struct insula_nested_table *nested, unsigned long *record,
			    unsigned long found, bool writable);

/*
 * A confined node may not access the frame any more, but its cores may remember it until
 * insula_nested_table_flush(). Whether that is to be called.
 */
bool insula_frame_record_revoke(struct insula_nested_table *nested, unsigned long *record);

/* The node does not use it any more. If it may forever (`lost`), the frame is leaked. */
void insula_frame_record_forget(unsigned long *record, bool lost);

#endif
