// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory objects: an ordered list of chunks, addressed by an offset that runs through them,
 * mapped into processes on demand.
 *
 * Pages are inserted as ordinary ones, with a reference each, so that I/O on a mapping works
 * (get_user_pages). A chunk outlives its mappings: a mapping holds the file, the file holds the
 * chunks.
 *
 * After an object is revoked no process can access it, and its memory is returned as soon as no
 * image, node or other part of the module uses it. A page is reused only once it is not pinned
 * by I/O.
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

#include "compat/compat.h"
#include "mem/chunk.h"
#include "mem/chunk_list.h"
#include "mem/clear.h"
#include "mem/file.h"
#include "mem/memory.h"
#include "mem/quarantine.h"
#include "mem/request.h"

/* Pages inserted per fault: mappings are mostly accessed sequentially. */
#define FAULT_BATCH	64

/* Value of an object's claims if it belongs to an image or a node. */
#define OWNED		(-1)

struct memory {
	struct mutex growing;		/* one INSULA_MEMORY_GROW at a time */
	struct inode *inode;		/* its file's, for its size */
	struct rw_semaphore mapping;	/* read: map or copy pages; write: change the chunks */
	unsigned long generation;	/* of its content: older mappings show the scratch page */
	struct page *scratch;		/* NULL until there is an older generation */
	struct insula_chunk_list chunks;
	spinlock_t lock;		/* revoked, users */
	bool revoked;
	u32 users;			/* of its memory, apart from mappings */
	atomic_t claims;		/* OWNED, or the number of nodes that share it */
	struct insula_description_data *description;
};

static const struct file_operations memory_fops;

/* All or nothing: new chunks are appended in one step, and stay as long as the object. */
static int memory_grow_locked(struct memory *memory, const struct insula_request *request)
{
	struct insula_chunk_list growth;
	int err;

	lockdep_assert_held(&memory->growing);
	insula_chunk_list_init(&growth);
	err = insula_chunks_alloc(request, &growth);
	if (!err)
		err = insula_chunk_list_reserve(&memory->chunks, growth.count);
	if (err) {
		insula_chunks_free(growth.chunks, growth.count);
	} else {
		insula_chunk_list_append(&memory->chunks, growth.chunks, growth.count);
		i_size_write(memory->inode, memory->chunks.size);
	}
	insula_chunk_list_free(&growth);
	return err;
}

static int memory_grow(struct memory *memory, void __user *argument)
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
	err = memory->revoked ? -ENODEV : memory_grow_locked(memory, &request);
	mutex_unlock(&memory->growing);
	return err;
}

/* Copy at most `room` chunks. Returns the number of all. */
static u32 memory_copy_chunks(struct memory *memory, struct insula_chunk *chunks, u32 room)
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

/* Copied out unlocked: the caller's memory may be a node's, and fault for long. */
static int memory_list_chunks(struct memory *memory, void __user *argument)
{
	struct insula_chunk *chunks = NULL;
	struct insula_chunks request;
	int err = 0;
	u32 room;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	/* Retry if it has grown meanwhile, so that `count` matches the copied chunks. */
	do {
		kvfree(chunks);
		room = min(request.capacity, READ_ONCE(memory->chunks.count));
		chunks = kvcalloc(room, sizeof(*chunks), GFP_KERNEL);
		if (!chunks && room)
			return -ENOMEM;
		request.count = memory_copy_chunks(memory, chunks, room);
	} while (room < min(request.count, request.capacity));
	room = min(room, request.count);
	if (copy_to_user(u64_to_user_ptr(request.chunks), chunks, room * sizeof(*chunks)) ||
	    copy_to_user(argument, &request, sizeof(request)))
		err = -EFAULT;
	kvfree(chunks);
	return err;
}

/* Copy as much as is contiguous in both. Returns its size, 0 at the end of either. */
static u64 memory_copy_some(struct memory *source, u64 from, struct memory *target, u64 to,
			    u64 size)
{
	struct insula_chunk_entry in, out;

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
 * Lock the chunks of both. By address, so that two copies in opposite directions cannot wait for
 * each other behind writers.
 */
static int memory_lock_both(struct memory *one, struct memory *other)
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

static void memory_unlock_both(struct memory *one, struct memory *other)
{
	up_read(&one->mapping);
	up_read(&other->mapping);
}

/* One granule at a time, so that others get the locks in between. */
static int memory_copy_all(struct memory *source, struct memory *target,
			   const struct insula_copy *copy)
{
	u64 done = 0, some;

	while (done < copy->size) {
		if (memory_lock_both(source, target))
			return -EINTR;
		some = memory_copy_some(source, copy->from + done, target, copy->to + done,
					min(copy->size - done, INSULA_GRANULE));
		memory_unlock_both(source, target);
		cond_resched();
		if (!some)
			return -EINVAL;
		done += some;
		if (fatal_signal_pending(current))
			return -EINTR;
	}
	return 0;
}

static bool memory_holds(struct memory *memory, u64 offset, u64 size)
{
	u64 all = READ_ONCE(memory->chunks.size);

	return offset <= all && size <= all - offset;
}

/* A node may write either object meanwhile: then the copy is not consistent. */
static int memory_copy(struct memory *target, void __user *argument)
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
	if (source != target && memory_holds(source, request.from, request.size) &&
	    memory_holds(target, request.to, request.size))
		err = memory_copy_all(source, target, &request);
	insula_memory_put(file);
	return err;
}

/*
 * A page prepared for mapping: shared futexes are keyed by its mapping and index. Lowmem pages
 * are not ordinary pages and stay without.
 */
static struct page *memory_page(struct address_space *mapping,
				const struct insula_chunk_entry *chunk,
				u64 offset)
{
	struct page *page = pfn_to_page(PHYS_PFN(chunk->extent.start + offset - chunk->offset));
	struct folio *folio = page_folio(page);

	/* Acquire: another fault may just have written the index. */
	if (!insula_chunk_is_lowmem(chunk) && smp_load_acquire(&folio->mapping) != mapping) {
		WRITE_ONCE(folio->index, offset >> PAGE_SHIFT);
		smp_store_release(&folio->mapping, mapping); /* after the index */
	}
	return page;
}

/* Insert the pages of [from, to), all in the chunk, for a fault at offset `at`. */
static int memory_insert(struct vm_fault *vmf, const struct insula_chunk_entry *chunk, u64 from,
			 u64 at, u64 to)
{
	unsigned long address = (vmf->address & PAGE_MASK) - (at - from);
	struct address_space *mapping = vmf->vma->vm_file->f_mapping;
	unsigned long count = (to - from) >> PAGE_SHIFT, i;
	struct page *pages[FAULT_BATCH];

	for (i = 0; i < count; i++)
		pages[i] = memory_page(mapping, chunk, from + (i << PAGE_SHIFT));
	return vm_insert_pages(vmf->vma, address, pages, &count);
}

/*
 * Map an aligned window of pages around the fault. If some of it is mapped already, only from
 * the faulting page on; if that is mapped too, another thread was faster.
 */
static vm_fault_t memory_map_around(struct vm_fault *vmf, struct memory *memory)
{
	u64 at = (u64)vmf->pgoff << PAGE_SHIFT, from, to;
	u64 first = (u64)vmf->vma->vm_pgoff << PAGE_SHIFT;
	struct insula_chunk_entry chunk;
	int err;

	if (!insula_chunk_list_at(&memory->chunks, at, &chunk))
		return VM_FAULT_SIGBUS;
	from = ALIGN_DOWN(at, FAULT_BATCH * PAGE_SIZE);
	to = min3(from + FAULT_BATCH * PAGE_SIZE, chunk.offset + chunk.extent.size,
		  first + (vmf->vma->vm_end - vmf->vma->vm_start));
	from = max3(from, chunk.offset, first);
	err = memory_insert(vmf, &chunk, from, at, to);
	if (err == -EBUSY)
		err = memory_insert(vmf, &chunk, at, at, to);
	if (err && err != -EBUSY)
		return err == -ENOMEM ? VM_FAULT_OOM : VM_FAULT_SIGBUS;
	return VM_FAULT_NOPAGE;
}

static bool memory_is_former(const struct vm_area_struct *vma, const struct memory *memory)
{
	return (unsigned long)vma->vm_private_data != memory->generation;
}

/* Mappings of an older generation show the scratch page instead of new content. */
static vm_fault_t memory_map_scratch(struct vm_fault *vmf, struct memory *memory)
{
	int err = vm_insert_page(vmf->vma, vmf->address & PAGE_MASK, memory->scratch);

	if (err && err != -EBUSY)
		return err == -ENOMEM ? VM_FAULT_OOM : VM_FAULT_SIGBUS;
	return VM_FAULT_NOPAGE;
}

static vm_fault_t memory_fault(struct vm_fault *vmf)
{
	struct memory *memory = vmf->vma->vm_file->private_data;
	vm_fault_t answer = VM_FAULT_SIGBUS;

	down_read(&memory->mapping);
	if (!READ_ONCE(memory->revoked))
		answer = memory_is_former(vmf->vma, memory) ? memory_map_scratch(vmf, memory) :
						       memory_map_around(vmf, memory);
	up_read(&memory->mapping);
	return answer;
}

static const struct vm_operations_struct memory_vm_ops = {
	.fault = memory_fault,
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

/* Count a user of its memory, until memory_unuse(). */
static int memory_use(struct memory *memory)
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

static void memory_unuse(struct memory *memory)
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
	insula_chunks_free(chunks.chunks, chunks.count);
	insula_chunk_list_free(&chunks);
}

/* The caller's ioctl is counted as a user. */
static int memory_revoke(struct file *file, struct memory *memory)
{
	mutex_lock(&memory->growing);
	down_write(&memory->mapping); /* faults in progress have finished */
	spin_lock(&memory->lock);
	WRITE_ONCE(memory->revoked, true);
	spin_unlock(&memory->lock);
	up_write(&memory->mapping);
	mutex_unlock(&memory->growing);
	unmap_mapping_range(file->f_mapping, 0, 0, 1);
	return 0;
}

static long memory_dispatch(struct file *file, struct memory *memory, unsigned int command,
			    void __user *user)
{
	struct insula_description_data *description;

	switch (command) {
	case INSULA_MEMORY_GROW:
		return memory_grow(memory, user);
	case INSULA_MEMORY_CHUNKS:
		return memory_list_chunks(memory, user);
	case INSULA_MEMORY_COPY:
		return memory_copy(memory, user);
	case INSULA_MEMORY_REVOKE:
		return memory_revoke(file, memory);
	case INSULA_DESCRIPTION:
		description = smp_load_acquire(&memory->description); /* before its bytes */
		return description ? insula_description_read(description, user) : -ENODATA;
	default:
		return -ENOTTY;
	}
}

static long memory_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct memory *memory = file->private_data;
	long answer = memory_use(memory);

	if (answer)
		return answer;
	answer = memory_dispatch(file, memory, command, (void __user *)argument);
	memory_unuse(memory);
	return answer;
}

static int memory_release(struct inode *inode, struct file *file)
{
	struct memory *memory = file->private_data;

	insula_chunks_free(memory->chunks.chunks, memory->chunks.count);
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
	err = file->f_op == &memory_fops ? memory_use(file->private_data) : -EBADF;
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
	memory_unuse(file->private_data);
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

	smp_store_release(&memory->description, description); /* after its bytes */
}

/* Detach existing mappings from its content. Locked for writing. */
static int memory_begin_generation(struct memory *memory, struct address_space *mapping)
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

static int memory_clear(const struct insula_chunk_list *list)
{
	unsigned long deadline = jiffies + INSULA_UNPIN_TIMEOUT;
	const struct insula_extent *extent;
	u32 i;

	for (i = 0; i < list->count; i++)
		if (!insula_wait_unpinned(&list->chunks[i].extent, deadline))
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
	err = memory_begin_generation(memory, file->f_mapping);
	if (!err)
		err = memory_clear(&memory->chunks);
	up_write(&memory->mapping);
	mutex_unlock(&memory->growing);
	return err;
}

/* Append all chunks of `source` to `target`. Both are locked for growing. */
static int memory_absorb(struct memory *target, struct memory *source)
{
	int err = insula_chunk_list_reserve(&target->chunks, source->chunks.count);
	struct insula_chunk_list moved;

	lockdep_assert_held(&target->growing);
	lockdep_assert_held(&source->growing);
	if (err)
		return err;
	insula_chunk_list_init(&moved);
	insula_chunk_list_move(&source->chunks, &moved);
	insula_chunks_detach(moved.chunks, moved.count);
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
	err = memory_absorb(target, source);
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
	insula_chunks_free(list->chunks + list->count, count);
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
	struct insula_chunk_entry chunk;

	if (!insula_chunk_list_get(&memory->chunks, index, &chunk))
		return false;
	*extent = chunk.extent;
	return true;
}

bool insula_memory_covers(struct file *file, u64 start, u64 size)
{
	struct memory *memory = file->private_data;
	struct insula_chunk_entry chunk;
	u64 covered = 0;

	if (start + size < start)
		return false;
	/* Adjacent chunks may be in any order in the object. */
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
	struct insula_chunk_entry chunk;
	u64 offset;
	u32 i;

	if (!insula_chunk_list_of(&memory->chunks, start, &chunk))
		return 0;
	extent = chunk.extent;
	count = min_t(u64, count, (extent.start + extent.size - start) >> PAGE_SHIFT);
	offset = chunk.offset + start - extent.start;
	for (i = 0; i < count; i++)
		pages[i] = memory_page(file->f_mapping, &chunk, offset + ((u64)i << PAGE_SHIFT));
	return count;
}
