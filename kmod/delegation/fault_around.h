/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_FAULT_AROUND_H
#define INSULA_FAULT_AROUND_H

#include <linux/mm_types.h>

/*
 * Map what the page cache has of [start, end) in a VMA, as accesses of its process that read. Best
 * effort, without I/O. mmap_lock held; afterwards the VMA may be gone.
 */
void insula_fault_around(struct vm_area_struct *vma, unsigned long start, unsigned long end);

#endif
