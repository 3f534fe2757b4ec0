// SPDX-License-Identifier: GPL-2.0-only
/*
 * The base's own memory, to be read by a watcher, and memory that the base does not use, where the
 * watcher keeps what is to survive the base. Its mappings are complete from the start: so a
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

/* `found`: what a resource has of the range. Whether that is all of it. */
static int base_memory_is_whole(struct resource *found, void *range)
{
	return resource_contains(found, range);
}

/* Whether all of the range is reserved, as by memmap=SIZE$START: no RAM, and no device's. */
static bool base_memory_is_reserved(u64 start, u64 size)
{
	struct resource range = DEFINE_RES_MEM(start, size);

	return start + size > start &&
	       walk_iomem_res_desc(IORES_DESC_RESERVED, IORESOURCE_MEM, start, start + size - 1,
				   &range, base_memory_is_whole) > 0;
}

/*
 * Map a range of physical addresses, which is the offset in the file: RAM to be read, reserved
 * memory to be read and written, if /dev/mem could be.
 */
static int base_memory_mmap(struct file *file, struct vm_area_struct *vma)
{
	u64 start = (u64)vma->vm_pgoff << PAGE_SHIFT, size = vma->vm_end - vma->vm_start;
	bool writes = vma->vm_flags & VM_WRITE;

	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (vma->vm_flags & VM_EXEC)
		return -EACCES;
	if (writes && !base_memory_is_reserved(start, size))
		return -EACCES;
	if (writes && (!capable(CAP_SYS_RAWIO) || security_locked_down(LOCKDOWN_DEV_MEM)))
		return -EPERM;
	if (!writes && !base_memory_covers(start, size))
		return -EINVAL;
	insula_vm_flags_clear(vma, writes ? VM_MAYEXEC : VM_MAYWRITE | VM_MAYEXEC);
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
