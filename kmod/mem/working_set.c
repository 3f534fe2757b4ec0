// SPDX-License-Identifier: GPL-2.0-only
/*
 * The working set of a snapshot: pages that its first copy wrote while it started.
 *
 * All copies go on from the same state, so that they write nearly the same pages. Later ones get
 * them before they start: each page that a running copy writes first costs it an exit, and an
 * interrupt of the base. It is a hint: a page that is missing, or not needed, does no harm. User
 * space keeps it with an image that it saves in a file.
 */
#include "mem/working_set.h"

#include <linux/err.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/uaccess.h>

#include "insula_module.h"
#include "mem/object.h"
#include "mem/shown.h"

/* States of `working_set_known` of the object that is shown. */
enum { UNKNOWN, BEING_STORED, KNOWN };

static struct insula_memory *working_set_source(const struct insula_memory *memory)
{
	return memory->source ? memory->source->private_data : NULL;
}

int insula_working_set_store(struct insula_memory *memory)
{
	struct insula_memory *source = working_set_source(memory);
	unsigned long index, count = 0;
	struct page *page;
	int err = 0;

	if (!source)
		return -EINVAL;
	if (atomic_cmpxchg(&source->working_set_known, UNKNOWN, BEING_STORED) != UNKNOWN)
		return 0;
	down_read(&memory->mapping);
	xa_for_each(&memory->own, index, page) {
		err = xa_err(xa_store(&source->working_set, index, xa_mk_value(1), GFP_KERNEL));
		if (err || ++count == INSULA_WORKING_SET_MAX)
			break;
	}
	up_read(&memory->mapping);
	/* A part is as good. */
	atomic_set_release(&source->working_set_known, KNOWN);
	return err;
}

int insula_working_set_own(struct insula_memory *memory)
{
	struct insula_memory *source = working_set_source(memory);
	unsigned long index;
	struct page *page;
	void *entry;

	if (!source)
		return -EINVAL;
	if (atomic_read_acquire(&source->working_set_known) != KNOWN)
		return 0;
	xa_for_each(&source->working_set, index, entry) {
		down_write(&memory->mapping);
		page = insula_shown_own_page(memory, (u64)index << PAGE_SHIFT);
		up_write(&memory->mapping);
		if (IS_ERR(page))
			return PTR_ERR(page);
		cond_resched();
	}
	return 0;
}

/* Describe the set's pages, at most `room` extents. Returns the number of all. */
static u32 working_set_extents(struct insula_memory *memory, struct insula_chunk *extents, u32 room)
{
	unsigned long index;
	u32 count = 0;
	u64 end = 0;
	void *entry;

	xa_for_each(&memory->working_set, index, entry) {
		if (!count || (u64)index << PAGE_SHIFT != end) {
			if (count < room)
				extents[count] = (struct insula_chunk) {
					.start = (u64)index << PAGE_SHIFT,
				};
			count++;
		}
		if (count <= room)
			extents[count - 1].size += PAGE_SIZE;
		end = ((u64)index + 1) << PAGE_SHIFT;
	}
	return count;
}

int insula_working_set_list(struct insula_memory *memory, void __user *argument)
{
	struct insula_chunk *extents;
	struct insula_chunks request;
	int err = 0;
	u32 room;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	room = min_t(u32, request.capacity, INSULA_WORKING_SET_MAX);
	extents = kvcalloc(room, sizeof(*extents), GFP_KERNEL);
	if (!extents && room)
		return -ENOMEM;
	/* Once known it is not changed any more. */
	request.count = atomic_read_acquire(&memory->working_set_known) == KNOWN ?
			working_set_extents(memory, extents, room) : 0;
	room = min(room, request.count);
	if (copy_to_user(u64_to_user_ptr(request.chunks), extents, room * sizeof(*extents)) ||
	    copy_to_user(argument, &request, sizeof(request)))
		err = -EFAULT;
	kvfree(extents);
	return err;
}

static int working_set_check(const struct insula_chunk *extents, u32 count, u64 size)
{
	u64 end = 0, left = INSULA_WORKING_SET_MAX << PAGE_SHIFT;
	u32 i;

	for (i = 0; i < count; i++) {
		if (!extents[i].size || !PAGE_ALIGNED(extents[i].start | extents[i].size) ||
		    extents[i].start < end || extents[i].start >= size ||
		    extents[i].size > size - extents[i].start || extents[i].size > left)
			return -EINVAL;
		end = extents[i].start + extents[i].size;
		left -= extents[i].size;
	}
	return 0;
}

static int working_set_fill(struct insula_memory *memory, const struct insula_chunk *extents,
			    u32 count)
{
	unsigned long index, end;
	int err = 0;
	u32 i;

	for (i = 0; i < count; i++) {
		end = (extents[i].start + extents[i].size) >> PAGE_SHIFT;
		for (index = extents[i].start >> PAGE_SHIFT; !err && index < end; index++)
			err = xa_err(xa_store(&memory->working_set, index, xa_mk_value(1),
					      GFP_KERNEL));
	}
	return err;
}

int insula_working_set_give(struct insula_memory *memory, void __user *argument)
{
	struct insula_chunk *extents;
	struct insula_chunks request;
	int err;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (memory->source || !request.capacity || request.capacity > INSULA_WORKING_SET_MAX)
		return -EINVAL;
	extents = vmemdup_user(u64_to_user_ptr(request.chunks),
			       request.capacity * sizeof(*extents));
	if (IS_ERR(extents))
		return PTR_ERR(extents);
	err = working_set_check(extents, request.capacity, READ_ONCE(memory->chunks.size));
	if (!err && atomic_cmpxchg(&memory->working_set_known, UNKNOWN, BEING_STORED) != UNKNOWN)
		err = -EEXIST;
	if (!err) {
		err = working_set_fill(memory, extents, request.capacity);
		/* A part is as good. */
		atomic_set_release(&memory->working_set_known, KNOWN);
	}
	kvfree(extents);
	return err;
}
