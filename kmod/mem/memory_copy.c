// SPDX-License-Identifier: GPL-2.0-only
/*
 * Copying between memory objects, in the base's direct map.
 */
#include "insula_module.h"

#include <linux/file.h>
#include <linux/io.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "mem/memory.h"
#include "mem/object.h"
#include "mem/shown.h"

/* Bytes of a chunk of the source, from its byte `from` on; limits `size` to what is contiguous. */
static const void *memory_copy_source(struct insula_memory *source,
				      const struct insula_chunk_entry *chunk, u64 from, u64 *size)
{
	u64 skip = offset_in_page(from);

	if (!source->source)
		return phys_to_virt(chunk->extent.start + from);
	*size = min(*size, PAGE_SIZE - skip);
	return page_address(insula_shown_page(source, chunk->offset + from)) + skip;
}

/* Copy as much as is contiguous in both. Returns its size, 0 at the end of either. */
static u64 memory_copy_some(struct insula_memory *source, u64 from, struct insula_memory *target,
			    u64 to, u64 size)
{
	struct insula_chunk_entry in, out;
	const void *bytes;

	if (!insula_chunk_list_at(&source->chunks, from, &in) ||
	    !insula_chunk_list_at(&target->chunks, to, &out))
		return 0;
	from -= in.offset;
	to -= out.offset;
	size = min3(size, in.extent.size - from, out.extent.size - to);
	bytes = memory_copy_source(source, &in, from, &size);
	memcpy(phys_to_virt(out.extent.start + to), bytes, size);
	return size;
}

/*
 * Lock the chunks of both. By address, so that two copies in opposite directions cannot wait for
 * each other behind writers.
 */
static int memory_copy_lock(struct insula_memory *one, struct insula_memory *other)
{
	struct insula_memory *first = min(one, other), *second = max(one, other);
	int err = down_read_killable(&first->mapping);

	if (err)
		return err;
	err = down_read_killable_nested(&second->mapping, SINGLE_DEPTH_NESTING);
	if (err)
		up_read(&first->mapping);
	return err;
}

static void memory_copy_unlock(struct insula_memory *one, struct insula_memory *other)
{
	up_read(&one->mapping);
	up_read(&other->mapping);
}

/* One granule at a time, so that others get the locks in between. */
static int memory_copy_all(struct insula_memory *source, struct insula_memory *target,
			   const struct insula_copy *copy)
{
	u64 done = 0, some;

	while (done < copy->size) {
		if (memory_copy_lock(source, target))
			return -EINTR;
		some = memory_copy_some(source, copy->from + done, target, copy->to + done,
					min(copy->size - done, INSULA_GRANULE));
		memory_copy_unlock(source, target);
		cond_resched();
		if (!some)
			return -EINVAL;
		done += some;
		if (fatal_signal_pending(current))
			return -EINTR;
	}
	return 0;
}

static bool memory_copy_fits(struct insula_memory *memory, u64 offset, u64 size)
{
	u64 all = READ_ONCE(memory->chunks.size);

	return offset <= all && size <= all - offset;
}

/* A node may write either object meanwhile: then the copy is not consistent. */
int insula_memory_copy(struct insula_memory *target, void __user *argument)
{
	struct insula_copy request;
	struct insula_memory *source;
	struct file *file;
	int err = -EINVAL;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (request.flags)
		return -EINVAL;
	file = insula_memory_get_any(request.source);
	if (IS_ERR(file))
		return PTR_ERR(file);
	source = file->private_data;
	if (source != target && !target->source &&
	    memory_copy_fits(source, request.from, request.size) &&
	    memory_copy_fits(target, request.to, request.size))
		err = memory_copy_all(source, target, &request);
	fput(file);
	return err;
}
