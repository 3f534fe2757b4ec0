/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Layout of the trampoline page below 1 MiB, shared by trampoline.S, which executes in it, and
 * start.c, which fills it.
 *
 * Offsets into the page; code is at its start, parameters at its end.
 */
#ifndef INSULA_TRAMPOLINE_H
#define INSULA_TRAMPOLINE_H

#define TRAMPOLINE_GDT		0xf00	/* four descriptors */
#define TRAMPOLINE_GDTR		0xf28	/* limit, 32-bit base */
#define TRAMPOLINE_TO32		0xf30	/* far pointer to the 32-bit part */
#define TRAMPOLINE_TO64		0xf38	/* far pointer to the 64-bit part */
#define TRAMPOLINE_LOW_CR3	0xf40	/* page table below 4 GiB */
#define TRAMPOLINE_CR3		0xf48	/* initial page table of the node */
#define TRAMPOLINE_ENTRY	0xf50	/* entry address; 0: park */
#define TRAMPOLINE_ARGUMENT	0xf58	/* value of RSI at the entry */
#define TRAMPOLINE_TSC		0xf60	/* out: time stamp counter at the jump */
#define TRAMPOLINE_ENTERED	0xf68	/* out: non-zero at the jump, or when parked */
#define TRAMPOLINE_STACK	0xf00	/* grows down, over code that has run */

/* For parked cores. */
#define TRAMPOLINE_VECTORS	0xf80	/* far pointers to handlers, 16 bits each half */
#define TRAMPOLINE_VECTORS_COUNT 19	/* up to that of machine checks */
#define TRAMPOLINE_IDTR		0xfd0	/* limit, 32-bit base */
#define TRAMPOLINE_PARK_CR4	0xfd8	/* MCE, if the cores support machine checks */
#define TRAMPOLINE_X2APIC	0xfdc	/* non-zero if the base is in x2APIC mode */
#define TRAMPOLINE_PARK_STACK	0x1000	/* room for two interrupts; never read */

/* x2APIC mode, a bit of MSR_IA32_APICBASE. */
#define TRAMPOLINE_APICBASE_X2APIC	0x400

/* Selectors required by the 64-bit boot protocol (Documentation/arch/x86/boot). */
#define TRAMPOLINE_CS32		0x08
#define TRAMPOLINE_CS64		0x10
#define TRAMPOLINE_DS		0x18

#ifndef __ASSEMBLY__
extern const char insula_trampoline[];
extern const char insula_trampoline_32[];
extern const char insula_trampoline_64[];
extern const char insula_trampoline_parked[];
extern const char insula_trampoline_checked[];
extern const char insula_trampoline_end[];
#endif

#endif
