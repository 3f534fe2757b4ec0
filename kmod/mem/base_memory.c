// SPDX-License-Identifier: GPL-2.0-only
/*
 * The base's own memory, to be read by a watcher. Its mappings are complete from the start: so a
 * program of the lightweight kernel that has touched all pages of one goes on reading them while
 * the base hangs.
 *
 * The pages are mapped by number, without references: memory that the base takes offline meanwhile
 * stays mapped. As it is only read, that harms nobody.
 */
#include "mem/base_memory.h"

#include <linux/capability.h>
#include <linux/err.h>
#include <linux/fs.h>
#include <linux/ioport.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/security.h>

#include "compat/compat.h"
#include "mem/file.h"

/* Whether all of the range is RAM. */
static bool base_memory_covers(u64 start, u64 size)
{
	return start + size > start &&
	       region_intersects(start, size, IORESOURCE_SYSTEM_RAM, IORES_DESC_NONE) ==
	       REGION_INTERSECTS;
}

/* Map a range of physical addresses, which is the offset in the file. */
static int base_memory_mmap(struct file *file, struct vm_area_struct *vma)
{
	u64 size = vma->vm_end - vma->vm_start;

	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (vma->vm_flags & (VM_WRITE | VM_EXEC))
		return -EACCES;
	if (!base_memory_covers((u64)vma->vm_pgoff << PAGE_SHIFT, size))
		return -EINVAL;
	insula_vm_flags_clear(vma, VM_MAYWRITE | VM_MAYEXEC);
	insula_vm_flags_set(vma, VM_DONTCOPY);
	return remap_pfn_range(vma, vma->vm_start, vma->vm_pgoff, size, vma->vm_page_prot);
}

static const struct file_operations base_memory_fops = {
	.owner = THIS_MODULE,
	.mmap = base_memory_mmap,
	.llseek = noop_llseek,
};

/* What may not be read of /proc/kcore may not be read here. */
int insula_base_memory_open(void)
{
	struct file *file;

	if (!capable(CAP_SYS_RAWIO) || security_locked_down(LOCKDOWN_KCORE))
		return -EPERM;
	file = insula_file_create("[insula-base-memory]", &base_memory_fops, NULL);
	return IS_ERR(file) ? PTR_ERR(file) : insula_file_install(file);
}
