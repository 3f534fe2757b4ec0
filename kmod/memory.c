// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory objects: an ordered list of chunks, addressed by an offset that runs
 * through them, mapped into processes page by page on demand.
 *
 * Pages are inserted as ordinary ones, with a reference each, so that a process
 * can do I/O on a mapping (get_user_pages works), and a chunk's memory outlives
 * its mappings: a mapping holds the file, the file holds the chunks.
 *
 * An object can be revoked: then no process reaches it any more, and its memory goes
 * back as soon as no image, node or other part of the module uses it. In any case
 * a page is given on only once nobody does I/O on it.
 */
#include "insula_module.h"

#include <linux/file.h>
#include <linux/io.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pagemap.h>
#include <linux/rwsem.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>

#include "chunk.h"
#include "chunk_list.h"
#include "clear.h"
#include "compat/compat.h"
#include "file.h"
#include "held.h"
#include "memory.h"

/* Pages inserted per fault: what is mapped is mostly read or written through. */
#define FAULT_BATCH	64

/* An object's claims if it is an image's or a node's own. */
#define OWNED		(-1)

struct memory {
	struct mutex growing;		/* one INSULA_MEMORY_GROW at a time */
	struct inode *inode;		/* its file's: tells its size to those who map it */
	struct rw_semaphore mapping;	/* held for reading while pages are mapped, or copied */
	unsigned long generation;	/* of what is in it: mappings of others do not show it */
	struct page *scratch;		/* NULL until there are such: what they show */
	struct insula_chunk_list chunks;
	spinlock_t lock;		/* revoked, users */
	bool revoked;
	u32 users;			/* that need its memory, beside processes */
	atomic_t claims;		/* OWNED, or how many nodes share it */
	struct insula_description_data *description;
};

static const struct file_operations memory_fops;

/*
 * All of it or nothing: what has been taken becomes the object's at one moment, so
 * that whoever finds a chunk in it finds it there as long as the object is.
 */
static int grow_locked(struct memory *memory, const struct insula_request *request)
{
	struct insula_chunk_list growth;
	int err;

	lockdep_assert_held(&memory->growing);
	insula_chunk_list_init(&growth);
	err = insula_chunks_take(request, &growth);
	if (!err)
		err = insula_chunk_list_reserve(&memory->chunks, growth.count);
	if (err) {
		insula_chunks_give(growth.chunks, growth.count);
	} else {
		insula_chunk_list_append(&memory->chunks, growth.chunks, growth.count);
		i_size_write(memory->inode, memory->chunks.size);
	}
	insula_chunk_list_free(&growth);
	return err;
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
	err = memory->revoked ? -ENODEV : grow_locked(memory, &request);
	mutex_unlock(&memory->growing);
	return err;
}

/* Chunks as far as there is room: how many there are. */
static u32 copy_chunks(struct memory *memory, struct insula_chunk *chunks, u32 room)
{
	u32 count, i;

	mutex_lock(&memory->growing);
	count = memory->chunks.count;
	for (i = 0; i < min(count, room); i++)
		chunks[i] = (struct insula_chunk) {
			.start = memory->chunks.chunks[i].extent.start,
			.size = memory->chunks.chunks[i].extent.size,
		};
	mutex_unlock(&memory->growing);
	return count;
}

/* The caller's memory may come from a node, which is not waited for with the lock. */
static int list_chunks(struct memory *memory, void __user *argument)
{
	struct insula_chunk *chunks = NULL;
	struct insula_chunks request;
	int err = 0;
	u32 room;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	/* Once more if it has grown meanwhile: what is said to be there is told of. */
	do {
		kvfree(chunks);
		room = min(request.capacity, READ_ONCE(memory->chunks.count));
		chunks = kvcalloc(room, sizeof(*chunks), GFP_KERNEL);
		if (!chunks && room)
			return -ENOMEM;
		request.count = copy_chunks(memory, chunks, room);
	} while (room < min(request.count, request.capacity));
	room = min(room, request.count);
	if (copy_to_user(u64_to_user_ptr(request.chunks), chunks, room * sizeof(*chunks)) ||
	    copy_to_user(argument, &request, sizeof(request)))
		err = -EFAULT;
	kvfree(chunks);
	return err;
}

/* Copy as much as lies in one chunk of each; how much that is, 0 if nothing. */
static u64 copy_some(struct memory *source, u64 from, struct memory *target, u64 to, u64 size)
{
	struct insula_owned in, out;

	if (!insula_chunk_list_at(&source->chunks, from, &in) ||
	    !insula_chunk_list_at(&target->chunks, to, &out))
		return 0;
	from -= in.offset;
	to -= out.offset;
	size = min3(size, in.extent.size - from, out.extent.size - to);
	memcpy(phys_to_virt(out.extent.start + to), phys_to_virt(in.extent.start + from), size);
	return size;
}

/*
 * Both keep their chunks as long as this is held. Of two that are copied to each other at once
 * the same one comes first: else each copy might wait behind a writer for the other.
 */
static int lock_both(struct memory *one, struct memory *other)
{
	struct memory *first = min(one, other), *second = max(one, other);
	int err = down_read_killable(&first->mapping);

	if (err)
		return err;
	err = down_read_killable_nested(&second->mapping, SINGLE_DEPTH_NESTING);
	if (err)
		up_read(&first->mapping);
	return err;
}

static void unlock_both(struct memory *one, struct memory *other)
{
	up_read(&one->mapping);
	up_read(&other->mapping);
}

/* A granule at a time, since it may be much, and others wait for the locks meanwhile. */
static int copy_all(struct memory *source, struct memory *target, const struct insula_copy *copy)
{
	u64 done = 0, some;

	while (done < copy->size) {
		if (lock_both(source, target))
			return -EINTR;
		some = copy_some(source, copy->from + done, target, copy->to + done,
				 min(copy->size - done, INSULA_GRANULE));
		unlock_both(source, target);
		cond_resched();
		if (!some)
			return -EINVAL;
		done += some;
		if (fatal_signal_pending(current))
			return -EINTR;
	}
	return 0;
}

static bool holds(struct memory *memory, u64 offset, u64 size)
{
	u64 all = READ_ONCE(memory->chunks.size);

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
	insula_memory_put(file);
	return err;
}

/*
 * A page as processes can map it: of which file it is, and where in it, is what a shared
 * futex goes by. What lies below 1 MiB is not described in this way.
 */
static struct page *page_at(struct address_space *mapping, const struct insula_owned *chunk,
			    u64 offset)
{
	struct page *page = pfn_to_page(PHYS_PFN(chunk->extent.start + offset - chunk->offset));
	struct folio *folio = page_folio(page);

	/* Acquired: the index, which another fault may just have written. */
	if (chunk->source != INSULA_FROM_LOW && smp_load_acquire(&folio->mapping) != mapping) {
		WRITE_ONCE(folio->index, offset >> PAGE_SHIFT);
		smp_store_release(&folio->mapping, mapping); /* its index */
	}
	return page;
}

/* Insert the pages of [from, to), which lie in the chunk, where the fault was at `at`. */
static int insert(struct vm_fault *vmf, const struct insula_owned *chunk, u64 from, u64 at, u64 to)
{
	unsigned long address = (vmf->address & PAGE_MASK) - (at - from);
	struct address_space *mapping = vmf->vma->vm_file->f_mapping;
	unsigned long count = (to - from) >> PAGE_SHIFT, i;
	struct page *pages[FAULT_BATCH];

	for (i = 0; i < count; i++)
		pages[i] = page_at(mapping, chunk, from + (i << PAGE_SHIFT));
	return vm_insert_pages(vmf->vma, address, pages, &count);
}

/*
 * A window of pages around the fault, aligned, since who copies may go up or down.
 * If some of it is there already, only what begins with the faulting page; if that
 * is there too, another thread was faster.
 */
static vm_fault_t map_around(struct vm_fault *vmf, struct memory *memory)
{
	u64 at = (u64)vmf->pgoff << PAGE_SHIFT, from, to;
	u64 first = (u64)vmf->vma->vm_pgoff << PAGE_SHIFT;
	struct insula_owned chunk;
	int err;

	if (!insula_chunk_list_at(&memory->chunks, at, &chunk))
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

static bool is_former(const struct vm_area_struct *vma, const struct memory *memory)
{
	return (unsigned long)vma->vm_private_data != memory->generation;
}

/* Whoever has not heard yet that the memory was cleared goes on, and harms nobody. */
static vm_fault_t map_scratch(struct vm_fault *vmf, struct memory *memory)
{
	int err = vm_insert_page(vmf->vma, vmf->address & PAGE_MASK, memory->scratch);

	if (err && err != -EBUSY)
		return err == -ENOMEM ? VM_FAULT_OOM : VM_FAULT_SIGBUS;
	return VM_FAULT_NOPAGE;
}

static vm_fault_t fault(struct vm_fault *vmf)
{
	struct memory *memory = vmf->vma->vm_file->private_data;
	vm_fault_t answer = VM_FAULT_SIGBUS;

	down_read(&memory->mapping);
	if (!READ_ONCE(memory->revoked))
		answer = is_former(vmf->vma, memory) ? map_scratch(vmf, memory) :
						       map_around(vmf, memory);
	up_read(&memory->mapping);
	return answer;
}

static const struct vm_operations_struct memory_vm_ops = {
	.fault = fault,
};

static int memory_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct memory *memory = file->private_data;
	u64 offset = (u64)vma->vm_pgoff << PAGE_SHIFT;
	u64 length = vma->vm_end - vma->vm_start;

	if (READ_ONCE(memory->revoked))
		return -ENODEV;
	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (offset + length < offset || offset + length > READ_ONCE(memory->chunks.size))
		return -EINVAL;
	insula_vm_flags_set(vma, VM_MIXEDMAP | VM_DONTEXPAND | VM_DONTDUMP);
	vma->vm_private_data = (void *)READ_ONCE(memory->generation);
	vma->vm_ops = &memory_vm_ops;
	return 0;
}

/* For a user of its memory, which it has until drop(). */
static int use(struct memory *memory)
{
	int err = 0;

	spin_lock(&memory->lock);
	if (memory->revoked)
		err = -ENODEV;
	else
		memory->users++;
	spin_unlock(&memory->lock);
	return err;
}

static void drop(struct memory *memory)
{
	struct insula_chunk_list chunks;
	bool unused;

	spin_lock(&memory->lock);
	unused = !--memory->users && memory->revoked;
	spin_unlock(&memory->lock);
	if (!unused)
		return;
	insula_chunk_list_init(&chunks);
	insula_chunk_list_move(&memory->chunks, &chunks);
	insula_chunks_give(chunks.chunks, chunks.count);
	insula_chunk_list_free(&chunks);
}

/* With the descriptor's own call counted as a user. */
static int revoke(struct file *file, struct memory *memory)
{
	mutex_lock(&memory->growing);
	down_write(&memory->mapping); /* nobody is about to map a page that was found before */
	spin_lock(&memory->lock);
	WRITE_ONCE(memory->revoked, true);
	spin_unlock(&memory->lock);
	up_write(&memory->mapping);
	mutex_unlock(&memory->growing);
	unmap_mapping_range(file->f_mapping, 0, 0, 1);
	return 0;
}

static long dispatch(struct file *file, struct memory *memory, unsigned int command,
		     void __user *user)
{
	struct insula_description_data *description;

	switch (command) {
	case INSULA_MEMORY_GROW:
		return grow(memory, user);
	case INSULA_MEMORY_CHUNKS:
		return list_chunks(memory, user);
	case INSULA_MEMORY_COPY:
		return copy(memory, user);
	case INSULA_MEMORY_REVOKE:
		return revoke(file, memory);
	case INSULA_DESCRIPTION:
		description = smp_load_acquire(&memory->description); /* its bytes */
		return description ? insula_description_read(description, user) : -ENODATA;
	default:
		return -ENOTTY;
	}
}

static long memory_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct memory *memory = file->private_data;
	long answer = use(memory);

	if (answer)
		return answer;
	answer = dispatch(file, memory, command, (void __user *)argument);
	drop(memory);
	return answer;
}

static int memory_release(struct inode *inode, struct file *file)
{
	struct memory *memory = file->private_data;

	insula_chunks_give(memory->chunks.chunks, memory->chunks.count);
	insula_chunk_list_free(&memory->chunks);
	insula_description_put(memory->description);
	if (memory->scratch)
		put_page(memory->scratch);
	kfree(memory);
	return 0;
}

static const struct file_operations memory_fops = {
	.owner = THIS_MODULE,
	.mmap = memory_mmap,
	.unlocked_ioctl = memory_ioctl,
	.llseek = generic_file_llseek,
	.release = memory_release,
};

int insula_memory_create(void)
{
	struct memory *memory = kzalloc(sizeof(*memory), GFP_KERNEL);
	struct file *file;

	if (!memory)
		return -ENOMEM;
	mutex_init(&memory->growing);
	init_rwsem(&memory->mapping);
	insula_chunk_list_init(&memory->chunks);
	spin_lock_init(&memory->lock);
	file = insula_file_create("[insula-memory]", &memory_fops, memory);
	if (IS_ERR(file)) {
		kfree(memory);
		return PTR_ERR(file);
	}
	memory->inode = file_inode(file);
	return insula_file_install(file);
}

struct file *insula_memory_get(int fd)
{
	struct file *file = fget(fd);
	int err;

	if (!file)
		return ERR_PTR(-EBADF);
	err = file->f_op == &memory_fops ? use(file->private_data) : -EBADF;
	if (!err)
		return file;
	fput(file);
	return ERR_PTR(err);
}

struct file *insula_memory_hold(struct file *file)
{
	struct memory *memory = file->private_data;

	spin_lock(&memory->lock);
	memory->users++;
	spin_unlock(&memory->lock);
	return get_file(file);
}

void insula_memory_put(struct file *file)
{
	drop(file->private_data);
	fput(file);
}

int insula_memory_install(struct file *file)
{
	return insula_file_install(get_file(file));
}

int insula_memory_claim(struct file *file)
{
	struct memory *memory = file->private_data;

	return atomic_cmpxchg(&memory->claims, 0, OWNED) ? -EBUSY : 0;
}

void insula_memory_unclaim(struct file *file)
{
	struct memory *memory = file->private_data;

	atomic_set(&memory->claims, 0);
}

int insula_memory_share(struct file *file)
{
	struct memory *memory = file->private_data;

	return atomic_inc_unless_negative(&memory->claims) ? 0 : -EBUSY;
}

void insula_memory_unshare(struct file *file)
{
	struct memory *memory = file->private_data;

	atomic_dec(&memory->claims);
}

void insula_memory_describe(struct file *file, struct insula_description_data *description)
{
	struct memory *memory = file->private_data;

	smp_store_release(&memory->description, description); /* its bytes first */
}

/* Nobody maps what is in it from here on, nor changes it who has mapped it. Locked. */
static int begin_generation(struct memory *memory, struct address_space *mapping)
{
	lockdep_assert_held_write(&memory->mapping);
	if (!memory->scratch)
		memory->scratch = alloc_page(GFP_KERNEL | __GFP_ZERO);
	if (!memory->scratch)
		return -ENOMEM;
	WRITE_ONCE(memory->generation, memory->generation + 1);
	unmap_mapping_range(mapping, 0, 0, 1);
	return 0;
}

static int clear(const struct insula_chunk_list *list)
{
	unsigned long deadline = jiffies + INSULA_LET_GO;
	const struct insula_extent *extent;
	u32 i;

	for (i = 0; i < list->count; i++)
		if (!insula_await_unheld(&list->chunks[i].extent, deadline))
			return -EBUSY;
	for (i = 0; i < list->count; i++) {
		extent = &list->chunks[i].extent;
		insula_clear(extent->start, extent->size);
	}
	return 0;
}

int insula_memory_clear(struct file *file)
{
	struct memory *memory = file->private_data;
	int err;

	mutex_lock(&memory->growing);
	down_write(&memory->mapping);
	err = begin_generation(memory, file->f_mapping);
	if (!err)
		err = clear(&memory->chunks);
	up_write(&memory->mapping);
	mutex_unlock(&memory->growing);
	return err;
}

/* Move all that `source` has behind what `target` has. Both are locked for growing. */
static int absorb(struct memory *target, struct memory *source)
{
	int err = insula_chunk_list_reserve(&target->chunks, source->chunks.count);
	struct insula_chunk_list moved;

	lockdep_assert_held(&target->growing);
	lockdep_assert_held(&source->growing);
	if (err)
		return err;
	insula_chunk_list_init(&moved);
	insula_chunk_list_move(&source->chunks, &moved);
	insula_chunks_disown(moved.chunks, moved.count);
	insula_chunk_list_append(&target->chunks, moved.chunks, moved.count);
	i_size_write(target->inode, target->chunks.size);
	insula_chunk_list_free(&moved);
	return 0;
}

int insula_memory_absorb(struct file *into, struct file *from)
{
	struct memory *target = into->private_data, *source = from->private_data;
	int err;

	mutex_lock(&target->growing);
	mutex_lock_nested(&source->growing, SINGLE_DEPTH_NESTING);
	down_write(&source->mapping);
	unmap_mapping_range(from->f_mapping, 0, 0, 1);
	err = absorb(target, source);
	up_write(&source->mapping);
	mutex_unlock(&source->growing);
	mutex_unlock(&target->growing);
	return err;
}

void insula_memory_drop(struct file *file, u32 count)
{
	struct memory *memory = file->private_data;
	struct insula_chunk_list *list = &memory->chunks;

	mutex_lock(&memory->growing);
	down_write(&memory->mapping);
	count = insula_chunk_list_cut(list, count);
	i_size_write(memory->inode, list->size);
	unmap_mapping_range(file->f_mapping, list->size, 0, 1);
	up_write(&memory->mapping);
	insula_chunks_give(list->chunks + list->count, count);
	mutex_unlock(&memory->growing);
}

u32 insula_memory_count(struct file *file)
{
	struct memory *memory = file->private_data;

	return READ_ONCE(memory->chunks.count);
}

u64 insula_memory_size(struct file *file)
{
	struct memory *memory = file->private_data;

	return READ_ONCE(memory->chunks.size);
}

bool insula_memory_chunk(struct file *file, u32 index, struct insula_extent *extent)
{
	struct memory *memory = file->private_data;
	struct insula_owned chunk;

	if (!insula_chunk_list_get(&memory->chunks, index, &chunk))
		return false;
	*extent = chunk.extent;
	return true;
}

bool insula_memory_covers(struct file *file, u64 start, u64 size)
{
	struct memory *memory = file->private_data;
	struct insula_owned chunk;
	u64 covered = 0;

	if (start + size < start)
		return false;
	/* Chunks may touch, in whatever order they are in the object. */
	do {
		if (!insula_chunk_list_of(&memory->chunks, start + covered, &chunk))
			return false;
		covered = chunk.extent.start + chunk.extent.size - start;
	} while (covered < size);
	return true;
}

u32 insula_memory_pages(struct file *file, phys_addr_t start, u32 count, struct page **pages)
{
	struct memory *memory = file->private_data;
	struct insula_extent extent;
	struct insula_owned chunk;
	u64 offset;
	u32 i;

	if (!insula_chunk_list_of(&memory->chunks, start, &chunk))
		return 0;
	extent = chunk.extent;
	count = min_t(u64, count, (extent.start + extent.size - start) >> PAGE_SHIFT);
	offset = chunk.offset + start - extent.start;
	for (i = 0; i < count; i++)
		pages[i] = page_at(file->f_mapping, &chunk, offset + ((u64)i << PAGE_SHIFT));
	return count;
}
