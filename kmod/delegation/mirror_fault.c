// SPDX-License-Identifier: GPL-2.0-only
/*
 * Page faults of a proxy on its program's memory.
 *
 * A fault is resolved from the program's own page table, a window of pages at a time, inserted
 * as ordinary pages so that calls can do I/O on them. They are inserted read-only, and made
 * writable by the first write fault, where the program's table allows it. A page that the table
 * does not map, or not for writing, is requested from the program's kernel by a remote fault:
 * on the slot of the faulting thread if that is in a call of the program, else as a fault of the
 * process.
 *
 * Faults walk and insert under walk_lock, shared; invalidation takes it exclusively, so that no
 * walk is under way. It is never held across a remote fault, and neither is mmap_lock, which
 * others need to inspect the process: the fault drops it and is retried after the answer. Locks
 * of the call itself (an inode, a pipe) stay held meanwhile, so every wait has a timeout, after
 * which access is denied.
 */
#include "insula_module.h"

#include <linux/bits.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/sched/task_stack.h>

#include <asm/syscall.h>
#include <asm/unistd.h>

#include "arch/x86/page_table.h"
#include "compat/compat.h"
#include "delegation/mirror.h"
#include "insula_lwk.h"

/* Pages mapped by one fault. A power of two. */
#define WINDOW_PAGES	64
/*
 * Timeout of a remote fault. The program's kernel answers within microseconds, or waits some
 * seconds for memory; longer only if it hangs.
 */
#define ANSWER_TIMEOUT_MS		20000
/* The same while mmap_lock cannot be dropped. */
#define LOCKED_TIMEOUT_MS		2000

/* The pages from address `first` on that a fault inserts. */
struct window {
	u64 first;
	unsigned int count;
	struct page *page[WINDOW_PAGES];	/* NULL: not mapped */
	DECLARE_BITMAP(writable, WINDOW_PAGES);
};

/* From here on the program's kernel asks for invalidation of this window. */
static void mirror_set_may_map(struct insula_mirror *mirror, u64 address)
{
	struct insula_lwk_may_map *may_map = insula_slots_may_map(mirror->slots, mirror->process);
	unsigned long *windows = (void *)may_map->windows;
	u64 bit = (address >> INSULA_LWK_MAY_MAP_SHIFT) % (8 * PAGE_SIZE);

	if (!test_bit(bit, windows))
		set_bit(bit, windows);
	smp_mb(); /* before any entry is read */
}

/* Look up page `i` of the window. */
static int mirror_look_up_page(const struct insula_page_table_walk *walk, struct window *window,
			       unsigned int i)
{
	struct insula_translation found;
	int err = insula_translate(walk, window->first + i * PAGE_SIZE, &found);

	/* Lowmem has no ordinary pages: no program may have it. */
	if (!err && found.page < INSULA_LOWMEM_LIMIT)
		err = -EIO;
	window->page[i] = err ? NULL : pfn_to_page(PHYS_PFN(found.page));
	if (!err && found.writable)
		__set_bit(i, window->writable);
	return err;
}

/* Look up the window around an address. The result is that of the address itself. */
static int mirror_look_up(struct insula_mirror *mirror, const struct vm_area_struct *vma,
			  u64 address, struct window *window)
{
	u64 first = ALIGN_DOWN(address, WINDOW_PAGES * PAGE_SIZE);
	u64 end = min_t(u64, first + WINDOW_PAGES * PAGE_SIZE, vma->vm_end);
	struct file *memory = insula_slots_memory(mirror->slots);
	struct insula_page_table_walk walk;
	int err, answer = -ENOENT;
	u64 page_table;
	unsigned int i;

	mirror_set_may_map(mirror, address);
	page_table = READ_ONCE(insula_slots_process(mirror->slots, mirror->process)->page_table);
	/* All pages of the window are in one table. */
	err = page_table ? insula_page_table_walk(&walk, memory, page_table, address) : -ENOENT;
	if (err)
		return err;
	window->first = max_t(u64, first, vma->vm_start);
	window->count = (end - window->first) >> PAGE_SHIFT;
	bitmap_zero(window->writable, WINDOW_PAGES);
	for (i = 0; i < window->count; i++) {
		err = mirror_look_up_page(&walk, window, i);
		if (i == (address - window->first) >> PAGE_SHIFT)
			answer = err;
	}
	return answer;
}

/* Insert `count` pages, skipping those already present. */
static int mirror_insert_run(struct vm_area_struct *vma, u64 address, struct page **pages,
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

static int mirror_insert(struct insula_mirror *mirror, struct vm_area_struct *vma,
			 struct window *window)
{
	unsigned int i, from = 0;
	u64 at;
	int err;

	for (i = 0; i <= window->count; i++) {
		at = window->first + i * PAGE_SIZE;
		if (i < window->count && window->page[i]) {
			err = insula_frame_tracker_add(&mirror->tracker, at, window->page[i]);
			if (err)
				return err;
			continue;
		}
		at = window->first + from * PAGE_SIZE;
		err = mirror_insert_run(vma, at, &window->page[from], i - from);
		if (err)
			return err;
		from = i + 1;
	}
	return 0;
}

static int mirror_make_pte_writable(pte_t *pte, unsigned long address, void *data)
{
	struct vm_area_struct *vma = data;

	if (pte_present(*pte))
		set_pte_at(vma->vm_mm, address, pte,
			   insula_pte_mkwrite(pte_mkdirty(pte_mkyoung(*pte))));
	return 0;
}

static int mirror_make_writable(struct vm_area_struct *vma, const struct window *window)
{
	unsigned int from, to;
	int err;

	for_each_set_bitrange(from, to, window->writable, window->count) {
		err = apply_to_page_range(vma->vm_mm, window->first + from * PAGE_SIZE,
					  (to - from) * PAGE_SIZE, mirror_make_pte_writable, vma);
		if (err)
			return err;
	}
	return 0;
}

/* -ENOENT: a remote fault is needed. */
static int mirror_map_window(struct insula_mirror *mirror, struct vm_area_struct *vma, u64 address,
			     bool write)
{
	struct window window;
	int err = mirror_look_up(mirror, vma, address, &window);

	if (err)
		return err;
	if (write && !test_bit((address - window.first) >> PAGE_SHIFT, window.writable))
		return -ENOENT;
	err = mirror_insert(mirror, vma, &window);
	return err || !write ? err : mirror_make_writable(vma, &window);
}

/* Whether it is an ioctl by which a proxy waits for calls, or handles signals, for example. */
static bool mirror_is_own_ioctl(int call, const unsigned long *arguments)
{
	unsigned int command = arguments[1];

	return call == __NR_ioctl && _IOC_TYPE(command) == INSULA_IOC &&
	       _IOC_NR(command) >= _IOC_NR(INSULA_MIRROR_CREATE) &&
	       _IOC_NR(command) <= _IOC_NR(INSULA_MIRROR_LEAVE);
}

/*
 * The slot to raise a remote fault on, or NULL: by the process. A thread of the proxy is in a call
 * of its program only during a system call that is not its own, and while it accesses the
 * program's memory itself. Else it completes earlier I/O, and the slot may have its next call
 * already, which it has not read; or it exits, and the program's thread has stopped.
 */
static struct insula_syscall_slot *mirror_slot_of(struct insula_mirror *mirror,
						  const struct vm_fault *vmf)
{
	struct insula_syscall_slot *slot = xa_load(&mirror->attached, current->pid);
	struct pt_regs *regs = task_pt_regs(current);
	unsigned long arguments[6];
	int call;

	if (current->flags & PF_EXITING)
		return NULL;
	if (!slot || vmf->flags & FAULT_FLAG_USER)
		return slot;
	call = syscall_get_nr(current, regs);
	if (call < 0)
		return NULL;
	syscall_get_arguments(current, regs, arguments);
	return mirror_is_own_ioctl(call, arguments) ? NULL : slot;
}

/* `slot`: that to raise the fault on, or NULL. */
static int mirror_may_raise(struct insula_mirror *mirror, struct insula_syscall_slot *slot,
			    u64 address, bool write)
{
	return slot ? insula_slot_may_fault(slot, address, write) :
		      insula_process_fault_may_raise(mirror, address, write);
}

static int mirror_raise(struct insula_mirror *mirror, struct insula_syscall_slot *slot,
			u64 address, bool write, unsigned int timeout_ms)
{
	return slot ? insula_slot_fault(slot, address, write, timeout_ms) :
		      insula_process_fault_raise(mirror, address, write, timeout_ms);
}

/* Map the page if the program's table maps it, else -ENOENT. */
static int mirror_try_map(struct insula_mirror *mirror, struct insula_syscall_slot *slot,
			  struct vm_area_struct *vma, u64 address, bool write)
{
	int err;

	down_read(&mirror->walk_lock);
	err = -EPIPE;
	if (!insula_slots_disconnected(mirror->slots))
		err = mirror_map_window(mirror, vma, address, write);
	up_read(&mirror->walk_lock);
	if (slot)
		insula_slot_looked_up(slot, !err);
	else
		insula_process_fault_looked_up(mirror, address, !err);
	return err;
}

/* Raise a remote fault without mmap_lock: the page fault is retried afterwards. */
static vm_fault_t mirror_fault_unlocked(struct vm_fault *vmf, struct insula_mirror *mirror,
					struct insula_syscall_slot *slot, u64 address, bool write)
{
	struct file *file = get_file(vmf->vma->vm_file);

	mmap_read_unlock(vmf->vma->vm_mm);
	/* The result is kept for the retry. */
	mirror_raise(mirror, slot, address, write, ANSWER_TIMEOUT_MS);
	fput(file);
	return VM_FAULT_RETRY;
}

static vm_fault_t mirror_fault_result(int err)
{
	if (err == -ENOMEM)
		return VM_FAULT_OOM;
	return err ? VM_FAULT_SIGBUS : VM_FAULT_NOPAGE;
}

/* Have the program's kernel map a page, and insert it, now or on the retry of the fault. */
static vm_fault_t mirror_remote_fault(struct vm_fault *vmf, struct insula_mirror *mirror,
				      struct insula_syscall_slot *slot, u64 address, bool write)
{
	int err;

	do {
		err = mirror_may_raise(mirror, slot, address, write);
		if (err)
			return VM_FAULT_SIGBUS;
		if (vmf->flags & FAULT_FLAG_RETRY_NOWAIT)
			return VM_FAULT_RETRY;
		if (vmf->flags & FAULT_FLAG_ALLOW_RETRY)
			return mirror_fault_unlocked(vmf, mirror, slot, address, write);
		err = mirror_raise(mirror, slot, address, write, LOCKED_TIMEOUT_MS);
		if (!err)
			err = mirror_try_map(mirror, slot, vmf->vma, address, write);
	} while (err == -ENOENT);
	return mirror_fault_result(err);
}

static vm_fault_t mirror_handle_fault(struct vm_fault *vmf, bool write)
{
	struct insula_mirror *mirror = vmf->vma->vm_file->private_data;
	struct insula_syscall_slot *slot = mirror_slot_of(mirror, vmf);
	u64 address = vmf->address & PAGE_MASK;
	int err = -EFAULT;

	if ((u64)vmf->pgoff << PAGE_SHIFT == address)
		err = mirror_try_map(mirror, slot, vmf->vma, address, write);
	if (err == -ENOENT)
		return mirror_remote_fault(vmf, mirror, slot, address, write);
	return mirror_fault_result(err);
}

static vm_fault_t mirror_fault(struct vm_fault *vmf)
{
	return mirror_handle_fault(vmf, vmf->flags & FAULT_FLAG_WRITE);
}

/* A write to a page that is mapped read-only. */
static vm_fault_t mirror_page_mkwrite(struct vm_fault *vmf)
{
	/* VM_FAULT_NOPAGE also with a retry: the caller has nothing left to do. */
	return mirror_handle_fault(vmf, true) | VM_FAULT_NOPAGE;
}

static const struct vm_operations_struct mirror_vm_ops = {
	.fault = mirror_fault,
	.page_mkwrite = mirror_page_mkwrite,
};

static int mirror_mmap_program(struct insula_mirror *mirror, struct vm_area_struct *vma)
{
	if ((u64)vma->vm_pgoff << PAGE_SHIFT != vma->vm_start ||
	    vma->vm_start < mirror->start || vma->vm_end > mirror->end)
		return -EINVAL;
	insula_vm_flags_set(vma, VM_MIXEDMAP | VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY);
	vma->vm_ops = &mirror_vm_ops;
	return 0;
}

int insula_mirror_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct insula_mirror *mirror = file->private_data;

	if (!(vma->vm_flags & VM_SHARED) || (vma->vm_flags & VM_EXEC))
		return -EINVAL;
	if (current->mm != READ_ONCE(mirror->mm))
		return -EPERM;
	if (vma->vm_pgoff >= INSULA_MIRROR_SLOTS >> PAGE_SHIFT)
		return insula_mirror_mmap_slots(vma);
	return mirror_mmap_program(mirror, vma);
}
