/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The page below 1 MiB in which a started core finds itself, shared between
 * trampoline.S, which runs in it, and start.c, which fills it.
 *
 * Offsets into the page; the code grows from its beginning, the parameters lie
 * at its end.
 */
#ifndef INSULA_TRAMPOLINE_H
#define INSULA_TRAMPOLINE_H

#define TRAMPOLINE_GDT		0xf00	/* four descriptors */
#define TRAMPOLINE_GDTR		0xf28	/* limit, 32-bit base */
#define TRAMPOLINE_TO32		0xf30	/* far pointer to the 32-bit part */
#define TRAMPOLINE_TO64		0xf38	/* far pointer to the 64-bit part */
#define TRAMPOLINE_LOW_CR3	0xf40	/* page table below 4 GiB */
#define TRAMPOLINE_CR3		0xf48	/* page table that the node begins with */
#define TRAMPOLINE_ENTRY	0xf50	/* where it begins; 0: park */
#define TRAMPOLINE_ARGUMENT	0xf58	/* what it finds in RSI */
#define TRAMPOLINE_TSC		0xf60	/* out: time stamp at the jump */
#define TRAMPOLINE_ENTERED	0xf68	/* out: non-zero at the jump */
#define TRAMPOLINE_STACK	0xf00	/* grows down, over code that has run */

/* Of cores that are parked. */
#define TRAMPOLINE_VECTORS	0xf80	/* far pointers to handlers, 16 bits each half */
#define TRAMPOLINE_VECTORS_COUNT 19	/* up to that of machine checks */
#define TRAMPOLINE_IDTR		0xfd0	/* limit, 32-bit base */
#define TRAMPOLINE_PARK_CR4	0xfd8	/* MCE, if there are machine checks */
#define TRAMPOLINE_PARK_STACK	0x1000	/* room for two interrupts; nothing is taken from it */

/* Selectors that the 64-bit boot protocol asks for (Documentation/arch/x86/boot). */
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
