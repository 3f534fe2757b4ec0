/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * All that differs between the kernels that the module builds for. Sources are
 * written for the newest of them; each shim names the change that made it needed.
 */
#ifndef INSULA_COMPAT_H
#define INSULA_COMPAT_H

#include <linux/mm.h>
#include <linux/version.h>

/* 6.3, bc292ab00f6c ("mm: introduce vma->vm_flags wrapper functions") */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
#define insula_vm_flags_set(vma, flags)	((vma)->vm_flags |= (flags))
#else
#define insula_vm_flags_set(vma, flags)	vm_flags_set(vma, flags)
#endif

/* 6.7, 2f0584f3f4bd ("mm: Rename arch pte_mkwrite()'s to pte_mkwrite_novma()") */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 7, 0)
#define insula_pte_mkwrite(pte)	pte_mkwrite(pte)
#else
#define insula_pte_mkwrite(pte)	pte_mkwrite_novma(pte)
#endif

/* 6.12, 5f60d5f6bbc1 ("move asm/unaligned.h to linux/unaligned.h") */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 12, 0)
#include <asm/unaligned.h>
#else
#include <linux/unaligned.h>
#endif

#endif
