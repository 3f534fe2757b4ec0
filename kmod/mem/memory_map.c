// SPDX-License-Identifier: GPL-2.0-only
/*
 * Mappings of memory objects. Pages are inserted on demand, as ordinary ones with a reference
 * each, so that I/O on a mapping works (get_user_pages).
 */
#include "insula_module.h"

#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/pagemap.h>

#include "compat/compat.h"
#include "mem/memory.h"
#include "mem/object.h"
#include "mem/shown.h"

/* Pages inserted per fault: mappings are mostly accessed sequentially. */
#define FAULT_BATCH	64

/*
 * A page prepared for mapping: shared futexes are keyed by its mapping and index. Lowmem pages
 * are not ordinary pages and stay without.
 */
static struct page *memory_map_page(struct address_space *mapping,
				    const struct insula_chunk_entry *chunk, u64 offset)
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
static int memory_map_insert(struct vm_fault *vmf, const struct insula_chunk_entry *chunk,
			     u64 from, u64 at, u64 to)
{
	unsigned long address = (vmf->address & PAGE_MASK) - (at - from);
	struct address_space *mapping = vmf->vma->vm_file->f_mapping;
	unsigned long count = (to - from) >> PAGE_SHIFT, i;
	struct page *pages[FAULT_BATCH];

	for (i = 0; i < count; i++)
		pages[i] = memory_map_page(mapping, chunk, from + (i << PAGE_SHIFT));
	return vm_insert_pages(vmf->vma, address, pages, &count);
}

/*
 * Map an aligned window of pages around the fault. If some of it is mapped already, only from
 * the faulting page on; if that is mapped too, another thread was faster.
 */
static vm_fault_t memory_map_around(struct vm_fault *vmf, struct insula_memory *memory)
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
	err = memory_map_insert(vmf, &chunk, from, at, to);
	if (err == -EBUSY)
		err = memory_map_insert(vmf, &chunk, at, at, to);
	if (err && err != -EBUSY)
		return err == -ENOMEM ? VM_FAULT_OOM : VM_FAULT_SIGBUS;
	return VM_FAULT_NOPAGE;
}

static bool memory_map_is_former(const struct vm_area_struct *vma,
				 const struct insula_memory *memory)
{
	return (unsigned long)vma->vm_private_data != memory->generation;
}

/* Mappings of an older generation show the scratch page instead of new content. */
static vm_fault_t memory_map_scratch(struct vm_fault *vmf, struct insula_memory *memory)
{
	int err = vm_insert_page(vmf->vma, vmf->address & PAGE_MASK, memory->scratch);

	if (err && err != -EBUSY)
		return err == -ENOMEM ? VM_FAULT_OOM : VM_FAULT_SIGBUS;
	return VM_FAULT_NOPAGE;
}

/* Map one page of an object that shows another: its own, if the mapping may write it. */
static vm_fault_t memory_map_shown(struct vm_fault *vmf, struct insula_memory *memory)
{
	u64 at = (u64)vmf->pgoff << PAGE_SHIFT;
	struct page *page;
	int err;

	if (vmf->vma->vm_flags & VM_WRITE)
		page = insula_shown_own_page(memory, at);
	else
		page = insula_shown_page(memory, at);
	if (IS_ERR_OR_NULL(page))
		return page == ERR_PTR(-ENOMEM) ? VM_FAULT_OOM : VM_FAULT_SIGBUS;
	err = vm_insert_page(vmf->vma, vmf->address & PAGE_MASK, page);
	if (err && err != -EBUSY)
		return err == -ENOMEM ? VM_FAULT_OOM : VM_FAULT_SIGBUS;
	return VM_FAULT_NOPAGE;
}

static vm_fault_t memory_map_fault_shown(struct vm_fault *vmf, struct insula_memory *memory)
{
	vm_fault_t answer;

	down_write(&memory->mapping);
	answer = memory_map_shown(vmf, memory);
	up_write(&memory->mapping);
	return answer;
}

static vm_fault_t memory_map_fault(struct vm_fault *vmf)
{
	struct insula_memory *memory = vmf->vma->vm_file->private_data;
	vm_fault_t answer;

	if (memory->source)
		return memory_map_fault_shown(vmf, memory);
	down_read(&memory->mapping);
	answer = memory_map_is_former(vmf->vma, memory) ? memory_map_scratch(vmf, memory) :
							  memory_map_around(vmf, memory);
	up_read(&memory->mapping);
	return answer;
}

static const struct vm_operations_struct memory_map_ops = {
	.fault = memory_map_fault,
};

int insula_memory_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct insula_memory *memory = file->private_data;
	u64 offset = (u64)vma->vm_pgoff << PAGE_SHIFT;
	u64 length = vma->vm_end - vma->vm_start;

	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (offset + length < offset || offset + length > READ_ONCE(memory->chunks.size))
		return -EINVAL;
	insula_vm_flags_set(vma, VM_MIXEDMAP | VM_DONTEXPAND | VM_DONTDUMP);
	/* A mapping either may write, and makes pages own, or never will. */
	if (memory->source && !(vma->vm_flags & VM_WRITE))
		insula_vm_flags_clear(vma, VM_MAYWRITE);
	vma->vm_private_data = (void *)READ_ONCE(memory->generation);
	vma->vm_ops = &memory_map_ops;
	return 0;
}

int insula_memory_begin_generation(struct insula_memory *memory, struct address_space *mapping)
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

u32 insula_memory_pages(struct file *file, phys_addr_t start, u32 count, struct page **pages)
{
	struct insula_memory *memory = file->private_data;
	struct insula_extent extent;
	struct insula_chunk_entry chunk;
	u64 offset;
	u32 i;

	if (memory->source || !insula_chunk_list_of(&memory->chunks, start, &chunk))
		return 0;
	extent = chunk.extent;
	count = min_t(u64, count, (extent.start + extent.size - start) >> PAGE_SHIFT);
	offset = chunk.offset + start - extent.start;
	for (i = 0; i < count; i++)
		pages[i] = memory_map_page(file->f_mapping, &chunk,
					   offset + ((u64)i << PAGE_SHIFT));
	return count;
}
