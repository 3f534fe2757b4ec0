// SPDX-License-Identifier: GPL-2.0-only
/*
 * Mapping a mirror over parts of its proxy: where a base mapping ends, and in a forked proxy,
 * which inherits the base mappings but not the mirror.
 *
 * Linux does not merge VMAs of this kind, so each base mapping that ends leaves one behind. When
 * they become many, neighbours are replaced by one.
 */
#include "insula_module.h"

#include <linux/err.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/mman.h>
#include <linux/mmap_lock.h>
#include <linux/sched/mm.h>
#include <linux/uaccess.h>

#include "delegation/mirror.h"

/* VMAs that a proxy has gained since those of the mirror were joined, before that is done again. */
#define JOIN_VMAS	4096

/* What is replaced by the mirror, besides holes. */
enum mirror_map_over {
	OVER_NOTHING,
	OVER_BASE_MAPPINGS,
	OVER_MIRROR,
};

/* A range of addresses. */
struct mirror_run {
	u64 start, end;
};

static int mirror_map_range(struct file *file, u64 start, u64 end)
{
	unsigned long address = vm_mmap(file, start, end - start, PROT_READ | PROT_WRITE,
					MAP_SHARED | MAP_FIXED, start);

	return IS_ERR_VALUE(address) ? (int)address : 0;
}

static bool mirror_map_is_over(const struct vm_area_struct *vma, enum mirror_map_over over)
{
	return over == (insula_mirror_is_vma(vma) ? OVER_MIRROR : OVER_BASE_MAPPINGS);
}

/* The first run from `start` to before `end` that is to be replaced; empty at `end`: none. */
static struct mirror_run mirror_map_next(u64 start, u64 end, enum mirror_map_over over)
{
	struct mirror_run run = { .start = start };
	struct vm_area_struct *vma;

	mmap_read_lock(current->mm);
	vma = find_vma(current->mm, run.start);
	while (vma && vma->vm_start <= run.start && run.start < end &&
	       !mirror_map_is_over(vma, over)) {
		run.start = vma->vm_end;
		vma = find_vma(current->mm, run.start);
	}
	run.end = run.start;
	while (vma && vma->vm_start < end && mirror_map_is_over(vma, over)) {
		run.end = vma->vm_end;
		vma = find_vma(current->mm, run.end);
	}
	run.end = max(run.end, vma ? min_t(u64, vma->vm_start, end) : end);
	mmap_read_unlock(current->mm);
	run.start = min(run.start, end);
	run.end = min(run.end, end);
	return run;
}

static int mirror_map_runs(struct file *file, u64 start, u64 end, enum mirror_map_over over)
{
	struct mirror_run run;
	int err = 0;

	while (!err && start < end) {
		run = mirror_map_next(start, end, over);
		if (run.start < run.end)
			err = mirror_map_range(file, run.start, run.end);
		start = run.end;
	}
	return err;
}

int insula_mirror_map(struct file *file, void __user *argument)
{
	struct insula_mirror *mirror = file->private_data;
	struct insula_mirror_map request;
	int err;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (request.flags & ~INSULA_MIRROR_MAP_KEEP || !PAGE_ALIGNED(request.start | request.end) ||
	    request.start < mirror->start || request.end > mirror->end ||
	    request.start >= request.end)
		return -EINVAL;
	if (request.flags & INSULA_MIRROR_MAP_KEEP)
		return mirror_map_runs(file, request.start, request.end, OVER_NOTHING);
	/* Where the mirror is already, mapping it again would scan its page tables. */
	err = mirror_map_runs(file, request.start, request.end, OVER_BASE_MAPPINGS);
	if (err || READ_ONCE(current->mm->map_count) < READ_ONCE(mirror->joined_vmas) + JOIN_VMAS)
		return err;
	err = mirror_map_runs(file, mirror->start, mirror->end, OVER_MIRROR);
	WRITE_ONCE(mirror->joined_vmas, READ_ONCE(current->mm->map_count));
	return err;
}
