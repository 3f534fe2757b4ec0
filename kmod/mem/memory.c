// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory objects: an ordered list of chunks, addressed by an offset that runs through them. A
 * chunk outlives its mappings: a mapping holds the file, the file holds the chunks.
 */
#include "insula_module.h"

#include <linux/err.h>
#include <linux/file.h>
#include <linux/io.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "mem/chunk.h"
#include "mem/clear.h"
#include "mem/file.h"
#include "mem/memory.h"
#include "mem/object.h"
#include "mem/quarantine.h"
#include "mem/request.h"
#include "mem/shown.h"
#include "mem/working_set.h"

/* Value of an object's claims if it belongs to an image or a node. */
#define OWNED		(-1)

/* All or nothing: new chunks are appended in one step, and stay as long as the object. */
static int memory_grow_locked(struct insula_memory *memory, const struct insula_request *request)
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

static int memory_grow(struct insula_memory *memory, void __user *argument)
{
	struct insula_request request;
	int err;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	err = insula_request_check(&request);
	if (err)
		return err;
	if (memory->source)
		return -EBUSY;
	if (mutex_lock_killable(&memory->growing))
		return -EINTR;
	err = memory_grow_locked(memory, &request);
	mutex_unlock(&memory->growing);
	return err;
}

/* Copy at most `room` chunks. Returns the number of all. */
static u32 memory_copy_chunks(struct insula_memory *memory, struct insula_chunk *chunks, u32 room)
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
static int memory_list_chunks(struct insula_memory *memory, void __user *argument)
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

static int memory_tell_use(struct insula_memory *memory, void __user *argument)
{
	struct insula_memory_use use = { .own = READ_ONCE(memory->chunks.size) };

	if (memory->source) {
		use.shown = use.own;
		use.own = insula_shown_own_size(memory);
		use.shown -= use.own;
	}
	return copy_to_user(argument, &use, sizeof(use)) ? -EFAULT : 0;
}

static long memory_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct insula_memory *memory = file->private_data;
	struct insula_description_data *description;
	void __user *user = (void __user *)argument;

	switch (command) {
	case INSULA_MEMORY_GROW:
		return memory_grow(memory, user);
	case INSULA_MEMORY_CHUNKS:
		return memory_list_chunks(memory, user);
	case INSULA_MEMORY_COPY:
		return insula_memory_copy(memory, user);
	case INSULA_MEMORY_USE:
		return memory_tell_use(memory, user);
	case INSULA_MEMORY_STORE_SET:
		return insula_working_set_store(memory);
	case INSULA_MEMORY_OWN_SET:
		return insula_working_set_own(memory);
	case INSULA_MEMORY_LIST_SET:
		return insula_working_set_list(memory, user);
	case INSULA_MEMORY_GIVE_SET:
		return insula_working_set_give(memory, user);
	case INSULA_DESCRIPTION:
		description = smp_load_acquire(&memory->description); /* before its bytes */
		return description ? insula_description_read(description, user) : -ENODATA;
	default:
		return -ENOTTY;
	}
}

static int memory_release(struct inode *inode, struct file *file)
{
	struct insula_memory *memory = file->private_data;

	if (!memory->source)
		insula_chunks_free(memory->chunks.chunks, memory->chunks.count);
	insula_shown_free(memory);
	xa_destroy(&memory->working_set);
	insula_chunk_list_free(&memory->chunks);
	insula_description_put(memory->description);
	if (memory->scratch)
		put_page(memory->scratch);
	kfree(memory);
	return 0;
}

static const struct file_operations memory_fops = {
	.owner = THIS_MODULE,
	.mmap = insula_memory_mmap,
	.unlocked_ioctl = memory_ioctl,
	.llseek = generic_file_llseek,
	.release = memory_release,
};

struct file *insula_memory_new(void)
{
	struct insula_memory *memory = kzalloc(sizeof(*memory), GFP_KERNEL);
	struct file *file;

	if (!memory)
		return ERR_PTR(-ENOMEM);
	mutex_init(&memory->growing);
	init_rwsem(&memory->mapping);
	xa_init(&memory->own);
	xa_init(&memory->working_set);
	insula_chunk_list_init(&memory->chunks);
	file = insula_file_create("[insula-memory]", &memory_fops, memory);
	if (IS_ERR(file))
		kfree(memory);
	else
		memory->inode = file_inode(file);
	return file;
}

int insula_memory_create(void)
{
	struct file *file = insula_memory_new();

	return IS_ERR(file) ? PTR_ERR(file) : insula_file_install(file);
}

struct file *insula_memory_get_any(int fd)
{
	struct file *file = fget(fd);

	if (file && file->f_op == &memory_fops)
		return file;
	if (file)
		fput(file);
	return ERR_PTR(-EBADF);
}

struct file *insula_memory_get(int fd)
{
	struct file *file = insula_memory_get_any(fd);

	if (IS_ERR(file) || !insula_memory_is_shown(file))
		return file;
	fput(file);
	return ERR_PTR(-EOPNOTSUPP);
}

int insula_memory_install(struct file *file)
{
	return insula_file_install(get_file(file));
}

int insula_memory_claim(struct file *file)
{
	struct insula_memory *memory = file->private_data;

	return atomic_cmpxchg(&memory->claims, 0, OWNED) ? -EBUSY : 0;
}

void insula_memory_unclaim(struct file *file)
{
	struct insula_memory *memory = file->private_data;

	atomic_set(&memory->claims, 0);
}

int insula_memory_share(struct file *file)
{
	struct insula_memory *memory = file->private_data;

	return atomic_inc_unless_negative(&memory->claims) ? 0 : -EBUSY;
}

void insula_memory_unshare(struct file *file)
{
	struct insula_memory *memory = file->private_data;

	atomic_dec(&memory->claims);
}

void insula_memory_describe(struct file *file, struct insula_description_data *description)
{
	struct insula_memory *memory = file->private_data;

	smp_store_release(&memory->description, description); /* after its bytes */
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
	struct insula_memory *memory = file->private_data;
	int err;

	if (memory->source)
		return -EOPNOTSUPP;
	mutex_lock(&memory->growing);
	down_write(&memory->mapping);
	err = insula_memory_begin_generation(memory, file->f_mapping);
	if (!err)
		err = memory_clear(&memory->chunks);
	up_write(&memory->mapping);
	mutex_unlock(&memory->growing);
	return err;
}

/* Append all chunks of `source` to `target`. Both are locked for growing. */
static int memory_absorb(struct insula_memory *target, struct insula_memory *source)
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
	struct insula_memory *target = into->private_data, *source = from->private_data;
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
	struct insula_memory *memory = file->private_data;
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
	struct insula_memory *memory = file->private_data;

	return READ_ONCE(memory->chunks.count);
}

u64 insula_memory_size(struct file *file)
{
	struct insula_memory *memory = file->private_data;

	return READ_ONCE(memory->chunks.size);
}

bool insula_memory_chunk(struct file *file, u32 index, struct insula_extent *extent)
{
	struct insula_memory *memory = file->private_data;
	struct insula_chunk_entry chunk;

	if (!insula_chunk_list_get(&memory->chunks, index, &chunk))
		return false;
	*extent = chunk.extent;
	return true;
}

void *insula_memory_address(struct file *file, phys_addr_t start, u64 size)
{
	if (insula_memory_is_shown(file))
		return insula_shown_own_address(file, start, size);
	return insula_memory_covers(file, start, size) ? phys_to_virt(start) : ERR_PTR(-EINVAL);
}

bool insula_memory_covers(struct file *file, u64 start, u64 size)
{
	struct insula_memory *memory = file->private_data;
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
