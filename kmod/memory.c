// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory objects: an ordered list of chunks, addressed by an offset that runs
 * through them, mapped into processes page by page on demand.
 *
 * Pages are inserted as ordinary ones, with a reference each, so that a process
 * can do I/O on a mapping (get_user_pages works), and a chunk's memory outlives
 * its mappings: a mapping holds the file, the file holds the chunks.
 */
#include "insula_module.h"

#include <linux/anon_inodes.h>
#include <linux/file.h>
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>

#include "compat/compat.h"
#include "low.h"
#include "memory.h"
#include "pool.h"
#include "take.h"

/* Pages inserted per fault: what is mapped is mostly read or written through. */
#define FAULT_BATCH	64

enum source { FROM_BASE, FROM_POOL, FROM_LOW };

struct chunk {
	u64 offset;		/* of its first byte in the object */
	struct insula_extent extent;
	enum source source;
	insula_pool_stamp stamp;
};

struct memory {
	struct mutex growing;		/* one INSULA_MEMORY_GROW at a time */
	spinlock_t lock;		/* chunks, count and size */
	struct chunk *chunks;
	u32 count;
	u64 size;
	atomic_t claimed;		/* it is an image's or a node's */
	struct insula_description_data *description;
};

static atomic64_t taken = ATOMIC64_INIT(0);
static const struct file_operations memory_fops;

u64 insula_memory_taken(void)
{
	return atomic64_read(&taken);
}

static void give_chunk(const struct chunk *chunk)
{
	if (chunk->source == FROM_LOW) {
		insula_low_return(chunk->extent.start, chunk->extent.size);
		return;
	}
	insula_clear(chunk->extent.start, chunk->extent.size);
	if (chunk->source == FROM_POOL) {
		insula_pool_give(&chunk->extent, chunk->stamp);
		return;
	}
	insula_give(chunk->extent.start, chunk->extent.size);
	atomic64_sub(chunk->extent.size, &taken);
}

static int take_chunk(const struct insula_request *request, u64 most, struct chunk *chunk)
{
	int err;

	if (request->max_phys && request->max_phys <= INSULA_LOW_LIMIT) {
		chunk->source = FROM_LOW;
		chunk->extent.size = most;
		return insula_low_take(most, request->min_phys, request->max_phys, 0,
				       &chunk->extent.start);
	}
	chunk->source = FROM_POOL;
	if (!insula_pool_take(request, most, &chunk->extent, &chunk->stamp))
		return 0;
	if (!insula_take_plausible(most))
		return -ENOMEM;
	chunk->source = FROM_BASE;
	err = insula_take(request, most, &chunk->extent);
	if (!err)
		atomic64_add(chunk->extent.size, &taken);
	return err;
}

/* Chunks that are to become an object's, and the size that it will have then. */
struct growth {
	struct chunk *chunks;
	u32 count;
	u32 capacity;
	u64 size;
};

/* Room for one more chunk. */
static int reserve_slot(struct growth *growth)
{
	u32 capacity = max(8U, 2 * growth->count);
	struct chunk *chunks;

	if (growth->count < growth->capacity)
		return 0;
	chunks = kvmalloc_array(capacity, sizeof(*chunks), GFP_KERNEL);
	if (!chunks)
		return -ENOMEM;
	if (growth->count)
		memcpy(chunks, growth->chunks, growth->count * sizeof(*chunks));
	kvfree(growth->chunks);
	growth->chunks = chunks;
	growth->capacity = capacity;
	return 0;
}

static int take_all(const struct insula_request *request, struct growth *growth)
{
	u64 left = request->size, most = left;
	struct chunk chunk;
	int err;

	while (left) {
		err = reserve_slot(growth);
		if (!err)
			err = take_chunk(request, min(left, most), &chunk);
		if (err)
			return err;
		chunk.offset = growth->size;
		growth->chunks[growth->count++] = chunk;
		growth->size += chunk.extent.size;
		left -= chunk.extent.size;
		/* What the base could not give once is not worth looking for again. */
		if (chunk.source == FROM_BASE)
			most = chunk.extent.size;
	}
	return 0;
}

/* The object's chunks and the new ones, in an array of their own. */
static struct chunk *joined(const struct memory *memory, const struct growth *growth)
{
	struct chunk *all;

	all = kvmalloc_array(memory->count + growth->count, sizeof(*all), GFP_KERNEL);
	if (!all)
		return NULL;
	if (memory->count)
		memcpy(all, memory->chunks, memory->count * sizeof(*all));
	memcpy(all + memory->count, growth->chunks, growth->count * sizeof(*all));
	return all;
}

/*
 * All of it or nothing: what has been taken becomes the object's at one moment, so
 * that whoever finds a chunk in it finds it there as long as the object is.
 */
static int grow_locked(struct memory *memory, const struct insula_request *request)
{
	struct growth growth = { .size = memory->size };
	struct chunk *all, *had = memory->chunks;
	int err = take_all(request, &growth);

	all = err ? NULL : joined(memory, &growth);
	if (!all) {
		while (growth.count)
			give_chunk(&growth.chunks[--growth.count]);
		kvfree(growth.chunks);
		return err ? err : -ENOMEM;
	}
	spin_lock(&memory->lock);
	memory->chunks = all;
	memory->count += growth.count;
	memory->size = growth.size;
	spin_unlock(&memory->lock);
	kvfree(growth.chunks);
	kvfree(had);
	return 0;
}

static int grow(struct memory *memory, void __user *argument)
{
	struct insula_request request;
	int err;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	err = insula_request_check(&request);
	if (err)
		return err;
	if (mutex_lock_killable(&memory->growing))
		return -EINTR;
	err = grow_locked(memory, &request);
	mutex_unlock(&memory->growing);
	return err;
}

static int list_chunks(struct memory *memory, void __user *argument)
{
	struct insula_chunk __user *to;
	struct insula_chunks request;
	struct insula_chunk chunk;
	u32 i;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	to = u64_to_user_ptr(request.chunks);
	mutex_lock(&memory->growing);
	request.count = memory->count;
	for (i = 0; i < min(request.count, request.capacity); i++) {
		chunk.start = memory->chunks[i].extent.start;
		chunk.size = memory->chunks[i].extent.size;
		if (copy_to_user(&to[i], &chunk, sizeof(chunk))) {
			mutex_unlock(&memory->growing);
			return -EFAULT;
		}
	}
	mutex_unlock(&memory->growing);
	return copy_to_user(argument, &request, sizeof(request)) ? -EFAULT : 0;
}

/* The chunk that holds `offset`, copied. */
static bool chunk_at(struct memory *memory, u64 offset, struct chunk *chunk)
{
	u32 low = 0, high;
	bool found;

	spin_lock(&memory->lock);
	high = memory->count;
	found = offset < memory->size;
	while (found && high - low > 1) {
		u32 middle = low + (high - low) / 2;

		if (memory->chunks[middle].offset <= offset)
			low = middle;
		else
			high = middle;
	}
	if (found)
		*chunk = memory->chunks[low];
	spin_unlock(&memory->lock);
	return found;
}

/* Copy as much as lies in one chunk of each; how much that is, 0 if nothing. */
static u64 copy_some(struct memory *source, u64 from, struct memory *target, u64 to, u64 size)
{
	struct chunk in, out;

	if (!chunk_at(source, from, &in) || !chunk_at(target, to, &out))
		return 0;
	from -= in.offset;
	to -= out.offset;
	size = min3(size, in.extent.size - from, out.extent.size - to);
	memcpy(phys_to_virt(out.extent.start + to), phys_to_virt(in.extent.start + from), size);
	return size;
}

/* A granule at a time, since it may be much. */
static int copy_all(struct memory *source, struct memory *target, const struct insula_copy *copy)
{
	u64 done = 0, some;

	while (done < copy->size) {
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
		some = copy_some(source, copy->from + done, target, copy->to + done,
				 min(copy->size - done, INSULA_GRANULE));
		if (!some)
			return -EINVAL;
		done += some;
	}
	return 0;
}

static bool holds(struct memory *memory, u64 offset, u64 size)
{
	u64 all = READ_ONCE(memory->size);

	return offset <= all && size <= all - offset;
}

/* A node may write either while it is copied: what arrives is its affair. */
static int copy(struct memory *target, void __user *argument)
{
	struct insula_copy request;
	struct memory *source;
	struct file *file;
	int err = -EINVAL;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (request.flags)
		return -EINVAL;
	file = insula_memory_get(request.source);
	if (IS_ERR(file))
		return PTR_ERR(file);
	source = file->private_data;
	if (source != target && holds(source, request.from, request.size) &&
	    holds(target, request.to, request.size))
		err = copy_all(source, target, &request);
	fput(file);
	return err;
}

/* Insert the pages of [from, to), which lie in the chunk, where the fault was at `at`. */
static int insert(struct vm_fault *vmf, const struct chunk *chunk, u64 from, u64 at, u64 to)
{
	unsigned long address = (vmf->address & PAGE_MASK) - (at - from);
	unsigned long pfn = PHYS_PFN(chunk->extent.start + from - chunk->offset);
	unsigned long count = (to - from) >> PAGE_SHIFT, i;
	struct page *pages[FAULT_BATCH];

	for (i = 0; i < count; i++)
		pages[i] = pfn_to_page(pfn + i);
	return vm_insert_pages(vmf->vma, address, pages, &count);
}

/*
 * A window of pages around the fault, aligned, since who copies may go up or down.
 * If some of it is there already, only what begins with the faulting page; if that
 * is there too, another thread was faster.
 */
static vm_fault_t fault(struct vm_fault *vmf)
{
	struct memory *memory = vmf->vma->vm_file->private_data;
	u64 at = (u64)vmf->pgoff << PAGE_SHIFT, from, to;
	u64 first = (u64)vmf->vma->vm_pgoff << PAGE_SHIFT;
	struct chunk chunk;
	int err;

	if (!chunk_at(memory, at, &chunk))
		return VM_FAULT_SIGBUS;
	from = ALIGN_DOWN(at, FAULT_BATCH * PAGE_SIZE);
	to = min3(from + FAULT_BATCH * PAGE_SIZE, chunk.offset + chunk.extent.size,
		  first + (vmf->vma->vm_end - vmf->vma->vm_start));
	from = max3(from, chunk.offset, first);
	err = insert(vmf, &chunk, from, at, to);
	if (err == -EBUSY)
		err = insert(vmf, &chunk, at, at, to);
	if (err && err != -EBUSY)
		return err == -ENOMEM ? VM_FAULT_OOM : VM_FAULT_SIGBUS;
	return VM_FAULT_NOPAGE;
}

static const struct vm_operations_struct memory_vm_ops = {
	.fault = fault,
};

static int memory_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct memory *memory = file->private_data;
	u64 offset = (u64)vma->vm_pgoff << PAGE_SHIFT;
	u64 length = vma->vm_end - vma->vm_start;

	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (offset + length < offset || offset + length > READ_ONCE(memory->size))
		return -EINVAL;
	insula_vm_flags_set(vma, VM_MIXEDMAP | VM_DONTEXPAND | VM_DONTDUMP);
	vma->vm_ops = &memory_vm_ops;
	return 0;
}

static long memory_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct memory *memory = file->private_data;
	struct insula_description_data *description;
	void __user *user = (void __user *)argument;

	switch (command) {
	case INSULA_MEMORY_GROW:
		return grow(memory, user);
	case INSULA_MEMORY_CHUNKS:
		return list_chunks(memory, user);
	case INSULA_MEMORY_COPY:
		return copy(memory, user);
	case INSULA_DESCRIPTION:
		description = smp_load_acquire(&memory->description); /* its bytes */
		return description ? insula_description_read(description, user) : -ENODATA;
	default:
		return -ENOTTY;
	}
}

static int memory_release(struct inode *inode, struct file *file)
{
	struct memory *memory = file->private_data;
	u32 i;

	for (i = 0; i < memory->count; i++)
		give_chunk(&memory->chunks[i]);
	kvfree(memory->chunks);
	insula_description_free(memory->description);
	kfree(memory);
	return 0;
}

static const struct file_operations memory_fops = {
	.owner = THIS_MODULE,
	.mmap = memory_mmap,
	.unlocked_ioctl = memory_ioctl,
	.release = memory_release,
};

int insula_memory_create(void)
{
	struct memory *memory = kzalloc(sizeof(*memory), GFP_KERNEL);
	int fd;

	if (!memory)
		return -ENOMEM;
	mutex_init(&memory->growing);
	spin_lock_init(&memory->lock);
	fd = anon_inode_getfd("[insula-memory]", &memory_fops, memory, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		kfree(memory);
	return fd;
}

struct file *insula_memory_get(int fd)
{
	struct file *file = fget(fd);

	if (file && file->f_op == &memory_fops)
		return file;
	if (file)
		fput(file);
	return ERR_PTR(-EBADF);
}

int insula_memory_install(struct file *file)
{
	int fd = get_unused_fd_flags(O_CLOEXEC);

	if (fd >= 0)
		fd_install(fd, get_file(file));
	return fd;
}

int insula_memory_claim(struct file *file)
{
	struct memory *memory = file->private_data;

	return atomic_xchg(&memory->claimed, 1) ? -EBUSY : 0;
}

void insula_memory_unclaim(struct file *file)
{
	struct memory *memory = file->private_data;

	atomic_set(&memory->claimed, 0);
}

void insula_memory_describe(struct file *file, struct insula_description_data *description)
{
	struct memory *memory = file->private_data;

	smp_store_release(&memory->description, description); /* its bytes first */
}

void insula_memory_clear(struct file *file)
{
	struct memory *memory = file->private_data;
	u32 i;

	mutex_lock(&memory->growing);
	for (i = 0; i < memory->count; i++)
		insula_clear(memory->chunks[i].extent.start, memory->chunks[i].extent.size);
	mutex_unlock(&memory->growing);
}

/* Move all that `source` has behind what `target` has. Both are locked for growing. */
static int absorb(struct memory *target, struct memory *source)
{
	struct growth growth = { .chunks = source->chunks, .count = source->count };
	struct chunk *all = joined(target, &growth), *had = target->chunks;
	u32 i;

	if (!all)
		return -ENOMEM;
	for (i = target->count; i < target->count + source->count; i++)
		all[i].offset += target->size;
	spin_lock(&source->lock);
	growth.size = source->size;
	source->chunks = NULL;
	source->count = 0;
	source->size = 0;
	spin_unlock(&source->lock);
	spin_lock(&target->lock);
	target->chunks = all;
	target->count += growth.count;
	target->size += growth.size;
	spin_unlock(&target->lock);
	kvfree(growth.chunks);
	kvfree(had);
	return 0;
}

int insula_memory_absorb(struct file *into, struct file *from)
{
	struct memory *target = into->private_data, *source = from->private_data;
	int err;

	mutex_lock(&target->growing);
	mutex_lock_nested(&source->growing, SINGLE_DEPTH_NESTING);
	err = absorb(target, source);
	mutex_unlock(&source->growing);
	mutex_unlock(&target->growing);
	return err;
}

void insula_memory_drop(struct file *file, u32 count)
{
	struct memory *memory = file->private_data;
	u32 i;

	mutex_lock(&memory->growing);
	spin_lock(&memory->lock);
	count = min(count, memory->count);
	memory->count -= count;
	if (count)
		memory->size = memory->chunks[memory->count].offset;
	spin_unlock(&memory->lock);
	/* A page that a process has mapped is freed when it unmaps it. */
	for (i = 0; i < count; i++)
		give_chunk(&memory->chunks[memory->count + i]);
	mutex_unlock(&memory->growing);
}

u32 insula_memory_count(struct file *file)
{
	struct memory *memory = file->private_data;

	return READ_ONCE(memory->count);
}

u64 insula_memory_size(struct file *file)
{
	struct memory *memory = file->private_data;

	return READ_ONCE(memory->size);
}

bool insula_memory_chunk(struct file *file, u32 index, struct insula_extent *extent)
{
	struct memory *memory = file->private_data;
	bool found;

	spin_lock(&memory->lock);
	found = index < memory->count;
	if (found)
		*extent = memory->chunks[index].extent;
	spin_unlock(&memory->lock);
	return found;
}

bool insula_memory_covers(struct file *file, u64 start, u64 size)
{
	struct memory *memory = file->private_data;
	bool covered = false;
	u32 i;

	spin_lock(&memory->lock);
	for (i = 0; i < memory->count && !covered; i++) {
		const struct insula_extent *extent = &memory->chunks[i].extent;

		covered = start >= extent->start && size <= extent->size &&
			  start - extent->start <= extent->size - size;
	}
	spin_unlock(&memory->lock);
	return covered;
}
