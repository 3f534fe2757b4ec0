// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory objects that show another one until they are written.
 *
 * The other one is an image's, whose chunks stay as long as there is a reference to it. A page is
 * the object's own from the first access by a writable mapping, or by the node itself, on. It is
 * then mapped anew everywhere: mappings of processes are removed, and the watch changes the nested
 * page table and flushes the node's cores, before anybody can write the new page.
 *
 * Pages are allocated one by one, from the base: a copy writes few of them.
 */
#include "mem/shown.h"

#include <linux/atomic.h>
#include <linux/err.h>
#include <linux/file.h>
#include <linux/gfp.h>
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#include "mem/file.h"
#include "mem/memory.h"
#include "mem/object.h"

/* Most chunks of an object, and end of what a nested page table maps. */
#define CHUNKS_MAX	65536
#define ADDRESS_END	BIT_ULL(48)
/* Rather no page than to have a process of the base killed. */
#define OWN_GFP		(GFP_KERNEL | __GFP_RETRY_MAYFAIL | __GFP_NOWARN)

/* Pages of their own, of all objects. */
static atomic64_t allocated = ATOMIC64_INIT(0);

u64 insula_shown_allocated(void)
{
	return (u64)atomic64_read(&allocated) << PAGE_SHIFT;
}

static struct insula_memory *shown_source(const struct insula_memory *memory)
{
	return memory->source->private_data;
}

bool insula_memory_is_shown(struct file *file)
{
	struct insula_memory *memory = file->private_data;

	return memory->source;
}

static struct page *shown_source_page(const struct insula_memory *memory, u64 offset)
{
	struct insula_chunk_entry chunk;

	if (!insula_chunk_list_at(&shown_source(memory)->chunks, offset, &chunk))
		return NULL;
	return pfn_to_page(PHYS_PFN(chunk.extent.start + offset - chunk.offset));
}

struct page *insula_shown_page(struct insula_memory *memory, u64 offset)
{
	struct page *own = xa_load(&memory->own, offset >> PAGE_SHIFT);

	return own ?: shown_source_page(memory, offset);
}

u64 insula_shown_own_size(const struct insula_memory *memory)
{
	return (u64)READ_ONCE(memory->own_count) << PAGE_SHIFT;
}

/* Replace a shown page by one of its own that has its content. Locked for mapping, to write. */
static int shown_replace(struct insula_memory *memory, u64 offset, struct page *page)
{
	struct insula_chunk_entry chunk;
	int err;

	if (!insula_chunk_list_at(&memory->chunks, offset, &chunk))
		return -EINVAL;
	err = xa_err(xa_store(&memory->own, offset >> PAGE_SHIFT, page, GFP_KERNEL));
	if (err)
		return err;
	copy_page(page_address(page), page_address(shown_source_page(memory, offset)));
	unmap_mapping_range(memory->inode->i_mapping, offset, PAGE_SIZE, 1);
	if (memory->watch)
		err = memory->watch->owned(memory->watch,
					   chunk.extent.start + offset - chunk.offset,
					   page_to_phys(page));
	if (err) {
		xa_erase(&memory->own, offset >> PAGE_SHIFT);
		return err;
	}
	WRITE_ONCE(memory->own_count, memory->own_count + 1);
	atomic64_inc(&allocated);
	return 0;
}

struct page *insula_shown_own_page(struct insula_memory *memory, u64 offset)
{
	struct page *page = xa_load(&memory->own, offset >> PAGE_SHIFT);
	int err;

	lockdep_assert_held_write(&memory->mapping);
	if (page)
		return page;
	page = alloc_page(OWN_GFP);
	if (!page)
		return ERR_PTR(-ENOMEM);
	err = shown_replace(memory, ALIGN_DOWN(offset, PAGE_SIZE), page);
	if (!err)
		return page;
	__free_page(page);
	return ERR_PTR(err);
}

/* Offset of `size` bytes at an address, in one chunk. */
static bool shown_offset(struct insula_memory *memory, u64 address, u64 size, u64 *offset)
{
	struct insula_chunk_entry chunk;

	if (!insula_chunk_list_of(&memory->chunks, address, &chunk) ||
	    size > chunk.extent.start + chunk.extent.size - address)
		return false;
	*offset = chunk.offset + address - chunk.extent.start;
	return true;
}

int insula_shown_own(struct file *file, u64 address)
{
	struct insula_memory *memory = file->private_data;
	struct page *page;
	u64 offset;

	if (!shown_offset(memory, address, 1, &offset))
		return -EINVAL;
	down_write(&memory->mapping);
	page = insula_shown_own_page(memory, offset);
	up_write(&memory->mapping);
	return PTR_ERR_OR_ZERO(page);
}

void *insula_shown_own_address(struct file *file, u64 address, u64 size)
{
	struct insula_memory *memory = file->private_data;
	struct page *page;
	u64 offset;

	if (offset_in_page(address) + size > PAGE_SIZE ||
	    !shown_offset(memory, address, size, &offset))
		return ERR_PTR(-EINVAL);
	down_write(&memory->mapping);
	page = insula_shown_own_page(memory, offset);
	up_write(&memory->mapping);
	return IS_ERR(page) ? ERR_CAST(page) : page_address(page) + offset_in_page(address);
}

/* Make pages own. What has become so stays so after a failure. */
static int shown_own_pages(struct insula_memory *memory, u64 offset, struct page **pages, u32 count)
{
	int err = 0;
	u32 i;

	down_write(&memory->mapping);
	for (i = 0; !err && i < count; i++) {
		pages[i] = insula_shown_own_page(memory, offset + ((u64)i << PAGE_SHIFT));
		err = PTR_ERR_OR_ZERO(pages[i]);
	}
	up_write(&memory->mapping);
	return err;
}

void *insula_shown_map(struct file *file, u64 address, u32 count)
{
	struct insula_memory *memory = file->private_data;
	struct page **pages;
	void *mapped;
	u64 offset;
	int err;

	if (!shown_offset(memory, address, (u64)count << PAGE_SHIFT, &offset))
		return ERR_PTR(-EINVAL);
	pages = kvcalloc(count, sizeof(*pages), GFP_KERNEL);
	if (!pages)
		return ERR_PTR(-ENOMEM);
	err = shown_own_pages(memory, offset, pages, count);
	mapped = err ? NULL : vmap(pages, count, VM_MAP, PAGE_KERNEL);
	kvfree(pages);
	if (err)
		return ERR_PTR(err);
	return mapped ?: ERR_PTR(-ENOMEM);
}

/* Tell a watch of the pages that are own already. */
static int shown_tell_own(struct insula_memory *memory, struct insula_shown_watch *watch)
{
	struct insula_chunk_entry chunk;
	unsigned long index;
	struct page *page;
	int err = 0;
	u64 offset;

	xa_for_each(&memory->own, index, page) {
		offset = (u64)index << PAGE_SHIFT;
		if (insula_chunk_list_at(&memory->chunks, offset, &chunk))
			err = watch->owned(watch, chunk.extent.start + offset - chunk.offset,
					   page_to_phys(page));
		if (err)
			break;
	}
	return err;
}

int insula_shown_set_watch(struct file *file, struct insula_shown_watch *watch)
{
	struct insula_memory *memory = file->private_data;
	int err;

	down_write(&memory->mapping);
	if (watch && memory->watch)
		err = -EBUSY;
	else
		err = watch ? shown_tell_own(memory, watch) : 0;
	if (!err)
		memory->watch = watch;
	up_write(&memory->mapping);
	return err;
}

void insula_shown_free(struct insula_memory *memory)
{
	unsigned long index;
	struct page *page;

	xa_for_each(&memory->own, index, page) {
		clear_page(page_address(page));
		put_page(page); /* I/O under way may keep it for a moment */
		atomic64_dec(&allocated);
	}
	xa_destroy(&memory->own);
	if (memory->source)
		fput(memory->source);
}

/* Only an image's memory is never changed, nor given back, while there are references to it. */
static bool shown_source_valid(struct file *source)
{
	struct insula_memory *memory = source->private_data;

	/* Pairs with insula_memory_describe(). */
	return smp_load_acquire(&memory->description);
}

/* Append the chunks that user space gives. -EINVAL: they are not in the other object. */
static int shown_set_chunks(struct insula_memory *memory, const struct insula_chunk *chunks,
			    u32 count)
{
	u64 room = READ_ONCE(shown_source(memory)->chunks.size);
	int err = insula_chunk_list_reserve(&memory->chunks, count);
	struct insula_chunk_entry entry = {};
	u32 i;

	for (i = 0; !err && i < count; i++) {
		entry.extent.start = chunks[i].start;
		entry.extent.size = chunks[i].size;
		if (!entry.extent.size || !PAGE_ALIGNED(entry.extent.start | entry.extent.size) ||
		    entry.extent.size > room || entry.extent.start >= ADDRESS_END ||
		    entry.extent.size > ADDRESS_END - entry.extent.start)
			return -EINVAL;
		room -= entry.extent.size;
		insula_chunk_list_append(&memory->chunks, &entry, 1);
	}
	return err;
}

/* Takes over the reference to the other object, also on failure. */
static int shown_create(struct file *source, const struct insula_chunk *chunks, u32 count)
{
	struct insula_memory *memory;
	struct file *file;
	int err;

	file = insula_memory_new();
	if (IS_ERR(file)) {
		fput(source);
		return PTR_ERR(file);
	}
	memory = file->private_data;
	memory->source = source;
	err = shown_set_chunks(memory, chunks, count);
	if (err) {
		fput(file);
		return err;
	}
	i_size_write(memory->inode, memory->chunks.size);
	return insula_file_install(file);
}

int insula_memory_show(void __user *argument)
{
	struct insula_memory_show request;
	struct insula_chunk *chunks;
	struct file *source;
	int err;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (!request.count || request.count > CHUNKS_MAX)
		return -EINVAL;
	chunks = vmemdup_user(u64_to_user_ptr(request.chunks), request.count * sizeof(*chunks));
	if (IS_ERR(chunks))
		return PTR_ERR(chunks);
	source = insula_memory_get(request.source);
	err = PTR_ERR_OR_ZERO(source);
	if (!err && !shown_source_valid(source)) {
		fput(source);
		err = -EINVAL;
	}
	if (!err)
		err = shown_create(source, chunks, request.count);
	kvfree(chunks);
	return err;
}
