// SPDX-License-Identifier: GPL-2.0-only
/*
 * Fault-around for base mappings. At a fault that reads a file Linux maps what it has of 64 KiB
 * around (do_fault_around() in mm/memory.c). A fault of a node costs a request, too, so more is
 * mapped at once.
 */
#include "delegation/fault_around.h"

#include <linux/err.h>
#include <linux/mm.h>
#include <linux/pagemap.h>

/* What Linux maps at one fault by default: fault_around_bytes. */
#define STEP	(64UL << 10)

static bool fault_around_is_cached(struct vm_area_struct *vma, unsigned long address)
{
	struct folio *folio = filemap_get_folio(vma->vm_file->f_mapping,
						linear_page_index(vma, address));
	bool uptodate;

	/* NULL before 6.4. */
	if (IS_ERR_OR_NULL(folio))
		return false;
	uptodate = folio_test_uptodate(folio);
	folio_put(folio);
	return uptodate;
}

void insula_fault_around(struct vm_area_struct *vma, unsigned long start, unsigned long end)
{
	struct mm_struct *mm = vma->vm_mm;
	bool unlocked = false;
	unsigned long at;

	if (!vma->vm_ops || !vma->vm_ops->map_pages || !(vma->vm_flags & VM_READ))
		return;
	start = max(start, vma->vm_start);
	end = min(end, vma->vm_end);
	for (at = start; at < end && !unlocked; at = ALIGN_DOWN(at, STEP) + STEP)
		if (fault_around_is_cached(vma, at))
			fixup_user_fault(mm, at, 0, &unlocked);
}
