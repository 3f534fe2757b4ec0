// SPDX-License-Identifier: GPL-2.0-only
/*
 * Mapping a process's syscall slots into its proxy, twice: for calls, and for the exits of the
 * proxy's threads, in which Linux reads their lists of robust futexes (insula_lwk.h).
 */
#include "insula_module.h"

#include <linux/build_bug.h>
#include <linux/mm.h>
#include <linux/pfn.h>
#include <linux/sched.h>

#include "compat/compat.h"
#include "delegation/mirror.h"
#include "insula_lwk.h"

static_assert(INSULA_MIRROR_SLOTS_SIZE == INSULA_LWK_PAGES_MAX * 4096ULL);

/* Slots are inserted one page per fault, and none after the node has ended. */
static vm_fault_t mirror_slots_insert(struct vm_fault *vmf, struct insula_mirror *mirror, u64 page)
{
	vm_fault_t answer = VM_FAULT_SIGBUS;
	phys_addr_t start;

	down_read(&mirror->walk_lock);
	start = insula_slots_page(mirror->slots, mirror->process, page);
	if (start && !insula_slots_disconnected(mirror->slots))
		answer = vmf_insert_pfn(vmf->vma, vmf->address & PAGE_MASK, PHYS_PFN(start));
	up_read(&mirror->walk_lock);
	return answer;
}

/*
 * A thread of the proxy exits with its process, unless it has left its slot before: wait until no
 * thread of the program runs, so that nobody gets a robust futex whose owner does. This comes
 * before the process's memory is unmapped, so the program's kernel has not been told yet.
 */
static vm_fault_t mirror_slots_exit(struct vm_fault *vmf, struct insula_mirror *mirror, u64 page)
{
	struct insula_syscall_slot *slot;

	if (!(current->flags & PF_EXITING) || current->mm != READ_ONCE(mirror->mm))
		return VM_FAULT_SIGBUS;
	slot = xa_load(&mirror->attached, current->pid);
	if (!slot)
		return VM_FAULT_SIGBUS;
	insula_slots_begin_exit(mirror->slots, mirror->process);
	if (!insula_slots_await_stop(mirror->slots, mirror->process) ||
	    !READ_ONCE(slot->shared->robust_list[0]))
		return VM_FAULT_SIGBUS;
	return mirror_slots_insert(vmf, mirror, page);
}

static vm_fault_t mirror_slots_fault(struct vm_fault *vmf)
{
	struct insula_mirror *mirror = vmf->vma->vm_file->private_data;
	u64 page = vmf->pgoff - (INSULA_MIRROR_SLOTS >> PAGE_SHIFT);

	if (page < INSULA_LWK_PAGES_MAX)
		return mirror_slots_insert(vmf, mirror, page);
	return mirror_slots_exit(vmf, mirror, page - INSULA_LWK_PAGES_MAX);
}

static const struct vm_operations_struct slots_vm_ops = {
	.fault = mirror_slots_fault,
};

int insula_mirror_mmap_slots(struct vm_area_struct *vma)
{
	insula_vm_flags_set(vma, VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY);
	vma->vm_ops = &slots_vm_ops;
	return 0;
}
