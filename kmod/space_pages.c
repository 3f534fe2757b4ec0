// SPDX-License-Identifier: GPL-2.0-only
/*
 * The pages of a program, as its proxy sees them.
 *
 * A fault is answered by the program's own page table, a window of pages at a time,
 * inserted as ordinary pages so that a call can do I/O on them. They are inserted for
 * reading, and made writable by the first fault that writes, as far as the program's
 * table allows. What it does not map, or not for writing, the program's kernel is asked
 * for, by the desk of the thread that faults.
 *
 * Faults walk and insert under the lock `walking`, shared; letting go takes it alone:
 * then no walk is under way. It is never held while something is asked for, and nor is the
 * lock of the address space, which whoever looks at the process wants to have: the fault
 * lets go of it, and is tried again when there is an answer. What the call itself holds (an
 * inode, a pipe) is held meanwhile, so all waiting has a limit, after which the access is
 * not allowed.
 */
#include "insula_module.h"

#include <linux/bits.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>

#include "arch/x86/page_table.h"
#include "compat/compat.h"
#include "insula_lwk.h"
#include "space.h"

/* Pages mapped by one fault. A power of two. */
#define WINDOW_PAGES	64
/*
 * How long the program's kernel may take to answer. It does so within microseconds, or waits
 * some seconds for memory; longer only if it hangs.
 */
#define ANSWER_LIMIT_MS		20000
/* The same while the lock of the address space cannot be let go of. */
#define LOCKED_LIMIT_MS		2000

/* The pages from `first` on that a fault is to insert. */
struct window {
	u64 first;
	unsigned int count;
	struct page *page[WINDOW_PAGES];	/* NULL: not there */
	DECLARE_BITMAP(writable, WINDOW_PAGES);
};

/* What we look at from now on the program's kernel will have us let go of. */
static void reach_for(struct insula_space *space, u64 address)
{
	unsigned long *windows = (void *)insula_desks_reach(space->desks, space->process)->windows;
	u64 bit = (address >> INSULA_LWK_REACH_SHIFT) % (8 * PAGE_SIZE);

	if (!test_bit(bit, windows))
		set_bit(bit, windows);
	smp_mb(); /* before any entry is read */
}

/* Look the window up that an address lies in. Its error is that of the address. */
static int look_up(struct insula_space *space, const struct vm_area_struct *vma, u64 address,
		   struct window *window)
{
	struct file *memory = insula_desks_memory(space->desks);
	u64 first = ALIGN_DOWN(address, WINDOW_PAGES * PAGE_SIZE), at;
	u64 end = min_t(u64, first + WINDOW_PAGES * PAGE_SIZE, vma->vm_end);
	struct insula_translation found;
	u64 page_table;
	unsigned int i;
	int err, answer = -ENOENT;

	first = max_t(u64, first, vma->vm_start);
	reach_for(space, address);
	page_table = READ_ONCE(insula_desks_process(space->desks, space->process)->page_table);
	if (!page_table)
		return -ENOENT;
	window->first = first;
	window->count = (end - first) >> PAGE_SHIFT;
	bitmap_zero(window->writable, WINDOW_PAGES);
	for (at = first, i = 0; at < end; at += PAGE_SIZE, i++) {
		err = insula_translate(memory, page_table, at, &found);
		/* Memory below 1 MiB is lent by the firmware: no program has it. */
		if (!err && found.page < INSULA_LOW_LIMIT)
			err = -EIO;
		window->page[i] = err ? NULL : pfn_to_page(PHYS_PFN(found.page));
		if (!err && found.writable)
			__set_bit(i, window->writable);
		if (at == address)
			answer = err;
	}
	return answer;
}

/* Insert `count` pages, each unless there is one already. */
static int insert_run(struct vm_area_struct *vma, u64 address, struct page **pages,
		      unsigned long count)
{
	unsigned long left, done;
	int err;

	while (count) {
		left = count;
		err = vm_insert_pages(vma, address, pages, &left);
		if (!err)
			return 0;
		if (err != -EBUSY)
			return err;
		done = count - left + 1;
		address += done * PAGE_SIZE;
		pages += done;
		count -= done;
	}
	return 0;
}

static int insert(struct insula_space *space, struct vm_area_struct *vma, struct window *window)
{
	unsigned int i, from = 0;
	u64 at;
	int err;

	for (i = 0; i <= window->count; i++) {
		at = window->first + i * PAGE_SIZE;
		if (i < window->count && window->page[i]) {
			err = insula_program_pages_add(&space->pages, at, window->page[i]);
			if (err)
				return err;
			continue;
		}
		at = window->first + from * PAGE_SIZE;
		err = insert_run(vma, at, &window->page[from], i - from);
		if (err)
			return err;
		from = i + 1;
	}
	return 0;
}

static int make_writable(pte_t *pte, unsigned long address, void *data)
{
	struct vm_area_struct *vma = data;

	if (pte_present(*pte))
		set_pte_at(vma->vm_mm, address, pte,
			   insula_pte_mkwrite(pte_mkdirty(pte_mkyoung(*pte))));
	return 0;
}

static int permit_writing(struct vm_area_struct *vma, const struct window *window)
{
	unsigned int from, to;
	int err;

	for_each_set_bitrange(from, to, window->writable, window->count) {
		err = apply_to_page_range(vma->vm_mm, window->first + from * PAGE_SIZE,
					  (to - from) * PAGE_SIZE, make_writable, vma);
		if (err)
			return err;
	}
	return 0;
}

/* -ENOENT: the program's kernel has to be asked for the page. */
static int map_window(struct insula_space *space, struct vm_area_struct *vma, u64 address,
		      bool write)
{
	struct window window;
	int err = look_up(space, vma, address, &window);

	if (err)
		return err;
	if (write && !test_bit((address - window.first) >> PAGE_SHIFT, window.writable))
		return -ENOENT;
	err = insert(space, vma, &window);
	return err || !write ? err : permit_writing(vma, &window);
}

/* Map the page, if the program's table has it: -ENOENT if not. */
static int bring(struct insula_space *space, struct vm_area_struct *vma, u64 address, bool write)
{
	int err;

	down_read(&space->walking);
	err = insula_desks_gone(space->desks) ? -EPIPE : map_window(space, vma, address, write);
	up_read(&space->walking);
	return err;
}

/* Ask for the page without the lock of the address space: the fault comes again. */
static vm_fault_t ask_unlocked(struct vm_fault *vmf, struct insula_seat *seat, u64 address,
			       bool write)
{
	struct file *file = get_file(vmf->vma->vm_file);

	mmap_read_unlock(vmf->vma->vm_mm);
	/* What comes of it the seat knows when the fault comes again. */
	insula_seat_ask(seat, address, write, ANSWER_LIMIT_MS);
	fput(file);
	return VM_FAULT_RETRY;
}

static vm_fault_t answer(int err)
{
	if (err == -ENOMEM)
		return VM_FAULT_OOM;
	return err ? VM_FAULT_SIGBUS : VM_FAULT_NOPAGE;
}

/* Have the program's kernel make a page present, and map it, now or when the fault comes again. */
static vm_fault_t demand(struct vm_fault *vmf, struct insula_space *space, u64 address, bool write)
{
	struct insula_seat *seat = xa_load(&space->seats, current->pid);
	int err;

	if (!seat)
		return VM_FAULT_SIGBUS;
	do {
		err = insula_seat_may_ask(seat, address, write);
		if (err)
			return VM_FAULT_SIGBUS;
		if (vmf->flags & FAULT_FLAG_RETRY_NOWAIT)
			return VM_FAULT_RETRY;
		if (vmf->flags & FAULT_FLAG_ALLOW_RETRY)
			return ask_unlocked(vmf, seat, address, write);
		err = insula_seat_ask(seat, address, write, LOCKED_LIMIT_MS);
		if (!err)
			err = bring(space, vmf->vma, address, write);
	} while (err == -ENOENT);
	return answer(err);
}

static vm_fault_t fault_for(struct vm_fault *vmf, bool write)
{
	struct insula_space *space = vmf->vma->vm_file->private_data;
	u64 address = vmf->address & PAGE_MASK;
	int err = -EFAULT;

	if ((u64)vmf->pgoff << PAGE_SHIFT == address)
		err = bring(space, vmf->vma, address, write);
	return err == -ENOENT ? demand(vmf, space, address, write) : answer(err);
}

static vm_fault_t fault(struct vm_fault *vmf)
{
	return fault_for(vmf, vmf->flags & FAULT_FLAG_WRITE);
}

/* A page that is mapped for reading is written to. */
static vm_fault_t page_mkwrite(struct vm_fault *vmf)
{
	/* Also where it is tried again, the caller has nothing left to do. */
	return fault_for(vmf, true) | VM_FAULT_NOPAGE;
}

static const struct vm_operations_struct program_vm_ops = {
	.fault = fault,
	.page_mkwrite = page_mkwrite,
};

static int map_program(struct insula_space *space, struct vm_area_struct *vma)
{
	if ((u64)vma->vm_pgoff << PAGE_SHIFT != vma->vm_start ||
	    vma->vm_start < space->start || vma->vm_end > space->end)
		return -EINVAL;
	insula_vm_flags_set(vma, VM_MIXEDMAP | VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY);
	vma->vm_ops = &program_vm_ops;
	return 0;
}

/* One at a time, as they are looked at: none after the node has gone. */
static vm_fault_t desks_fault(struct vm_fault *vmf)
{
	struct insula_space *space = vmf->vma->vm_file->private_data;
	u64 page = vmf->pgoff - (INSULA_SPACE_DESKS >> PAGE_SHIFT);
	vm_fault_t answer = VM_FAULT_SIGBUS;
	phys_addr_t start;

	down_read(&space->walking);
	start = insula_desks_page(space->desks, space->process, page);
	if (start && !insula_desks_gone(space->desks))
		answer = vmf_insert_pfn(vmf->vma, vmf->address & PAGE_MASK, PHYS_PFN(start));
	up_read(&space->walking);
	return answer;
}

static const struct vm_operations_struct desks_vm_ops = {
	.fault = desks_fault,
};

static int map_desks(struct vm_area_struct *vma)
{
	insula_vm_flags_set(vma, VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY);
	vma->vm_ops = &desks_vm_ops;
	return 0;
}

int insula_space_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct insula_space *space = file->private_data;

	if (!(vma->vm_flags & VM_SHARED) || (vma->vm_flags & VM_EXEC))
		return -EINVAL;
	if (current->mm != READ_ONCE(space->mm))
		return -EPERM;
	if (vma->vm_pgoff >= INSULA_SPACE_DESKS >> PAGE_SHIFT)
		return map_desks(vma);
	return map_program(space, vma);
}
