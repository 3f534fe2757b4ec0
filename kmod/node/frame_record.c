// SPDX-License-Identifier: GPL-2.0-only
/*
 * Records of the base's frames that a node uses. What the node's memory says is not trusted.
 *
 * Flags are HMM's: VALID; WRITE if the node may write the frame, unlike HMM, which means the base's
 * own entry; and in place of ERROR, which is never recorded, REVOKED.
 */
#include "node/frame_record.h"

#include <linux/errno.h>
#include <linux/hmm.h>
#include <linux/mm.h>

#include "node/nested_table.h"

#define REVOKED	HMM_PFN_ERROR

static unsigned long frame_record_number(unsigned long record)
{
	return record & ~HMM_PFN_FLAGS;
}

/* A frame that the node has anyway is none of the base. */
static int frame_record_error(int err)
{
	return err == -EEXIST ? -EFAULT : err;
}

int insula_frame_records_prepare(struct insula_nested_table *nested, const unsigned long *found,
				 u64 count)
{
	int err = 0;
	u64 i;

	for (i = 0; nested && !err && i < count; i++)
		if (found[i] & HMM_PFN_VALID)
			err = insula_nested_frame_prepare(nested, frame_record_number(found[i]));
	return frame_record_error(err);
}

static int frame_record_add_nested(struct insula_nested_table *nested, unsigned long old,
				   unsigned long new)
{
	unsigned long frame = frame_record_number(new);

	if (!old)
		return insula_nested_frame_map(nested, frame, new & HMM_PFN_WRITE);
	if (new & HMM_PFN_WRITE && !(old & HMM_PFN_WRITE))
		insula_nested_frame_add_writer(nested, frame);
	return 0;
}

int insula_frame_record_add(struct insula_nested_table *nested, unsigned long *record,
			    unsigned long found, bool writable)
{
	unsigned long old = *record, new = frame_record_number(found) | HMM_PFN_VALID;
	int err = 0;

	/* The base does not change a mapping before what it had there is forgotten. */
	if (old && (old & REVOKED || frame_record_number(old) != frame_record_number(new)))
		return -EBUSY;
	if (writable || old & HMM_PFN_WRITE)
		new |= HMM_PFN_WRITE;
	if (nested)
		err = frame_record_add_nested(nested, old, new);
	if (!err)
		*record = new;
	return frame_record_error(err);
}

bool insula_frame_record_revoke(struct insula_nested_table *nested, unsigned long *record)
{
	if (!nested || !*record)
		return false;
	if (!(*record & REVOKED))
		insula_nested_frame_unmap(nested, frame_record_number(*record),
					  *record & HMM_PFN_WRITE);
	*record |= REVOKED;
	return true;
}

void insula_frame_record_forget(unsigned long *record, bool lost)
{
	if (*record && lost && pfn_valid(frame_record_number(*record)))
		get_page(pfn_to_page(frame_record_number(*record)));
	*record = 0;
}
