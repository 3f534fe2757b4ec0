/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Differences between the kernels that the module builds for. Sources are written for the newest
 * of them; each shim cites the commit that made it necessary. INSULA_HAS_*: found by Kbuild in
 * the kernel's headers.
 */
#ifndef INSULA_COMPAT_H
#define INSULA_COMPAT_H

#include <linux/gfp.h>
#include <linux/mm.h>

/* 6.3, bc292ab00f6c ("mm: introduce vma->vm_flags wrapper functions") */
#ifdef INSULA_HAS_VM_FLAGS_SET
#define insula_vm_flags_set(vma, flags)	vm_flags_set(vma, flags)
#define insula_vm_flags_clear(vma, flags)	vm_flags_clear(vma, flags)
#else
#define insula_vm_flags_set(vma, flags)	((vma)->vm_flags |= (flags))
#define insula_vm_flags_clear(vma, flags)	((vma)->vm_flags &= ~(flags))
#endif

/* 6.7, 2f0584f3f4bd ("mm: Rename arch pte_mkwrite()'s to pte_mkwrite_novma()") */
#ifdef INSULA_HAS_PTE_MKWRITE_NOVMA
#define insula_pte_mkwrite(pte)	pte_mkwrite_novma(pte)
#else
#define insula_pte_mkwrite(pte)	pte_mkwrite(pte)
#endif

/*
 * 6.17: the third argument of alloc_contig_range() is acr_flags_t, no longer a migrate type.
 * Compilers accept either for the other.
 */
#ifdef INSULA_HAS_ACR_FLAGS_T
#define INSULA_CONTIG_ORDINARY	ACR_FLAGS_NONE
#else
#define INSULA_CONTIG_ORDINARY	MIGRATE_MOVABLE
#endif

/* 6.12, 6da8e9634bb7 ("mm: new follow_pfnmap API"). Of a VMA that is VM_PFNMAP or VM_IO. */
static inline int insula_follow_pfn(struct vm_area_struct *vma, unsigned long address,
				    unsigned long *frame, bool *writable)
{
#ifdef INSULA_HAS_FOLLOW_PFNMAP_START
	struct follow_pfnmap_args args = { .vma = vma, .address = address };
	int err = follow_pfnmap_start(&args);

	if (err)
		return err;
	*frame = args.pfn;
	*writable = args.writable;
	follow_pfnmap_end(&args);
	return 0;
#else
	/* It has been faulted in for writing if it is to be written. */
	*writable = vma->vm_flags & VM_WRITE;
	return follow_pfn(vma, address, frame);
#endif
}

/* 6.12, 5f60d5f6bbc1 ("move asm/unaligned.h to linux/unaligned.h") */
#ifdef INSULA_HAS_GET_UNALIGNED
#include <linux/unaligned.h>
#else
#include <asm/unaligned.h>
#endif

#endif
