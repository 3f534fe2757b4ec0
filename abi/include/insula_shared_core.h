/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * insula_shared_core.h - a core that the base shares with a lightweight kernel (LWK)
 *
 * The base enters the LWK by a call, on the core and with interrupts off, and the LWK calls back
 * to leave it: as coroutines. Each finds all registers as it left them, except that RAX, RCX, RDX,
 * RSI, RDI and R8 to R11 are undefined after the call, as after any. The two share one page,
 * struct insula_shared_core, which has the same address in both, and so has the page of the code
 * that switches.
 *
 * First entry: as of struct insula_node_start, with the page's address in RDX. The base has set the
 * last entry of the page table's root, by which the LWK knows that it was called: both pages are
 * in the last GiB, which has a page directory of the base until the LWK maps both at their
 * addresses in tables of its own.
 * CS is 0x08, all other segments are null, GDT and IDT are in the page: a fault ends the LWK, and
 * a non-maskable interrupt (NMI) is counted.
 *
 * Interrupts. The LWK has one vector, `vector`, by which its doorbells are rung, and it ends such
 * an interrupt itself. All others are the base's: the LWK sets their bits in `taken`, does not end
 * them, and leaves as soon as it can. The base handles them as if they had come then: so the local
 * APIC holds back what is not more urgent, and interrupts by level stay asserted until they are
 * handled. An NMI is counted in `nmis`, and the LWK leaves as well. If `abandon` is set by then,
 * it leaves for good at once, whatever it is doing.
 *
 * While `interrupts_off` is 1 the base cannot handle interrupts. The LWK ends those that come all
 * the same, except spurious ones (0xff), and leaves as always: the base has them come again later.
 * Its own vector does not come: it is rung by an NMI.
 *
 * On a core of a confined node (insula_monitor.h) the monitor takes the base's place above, and
 * both kernels are its guests. It takes the core from the LWK and gives it back at any instruction,
 * so nothing is ever taken, NMIs do not come, and `armed` is 0. `virtual_vector` is 1: no local
 * APIC delivers `vector`, and the LWK does not end it.
 *
 * To interrupt the LWK by another vector the base sets its bit in `pending`, then rings. After
 * each entry the LWK looks at `pending`, its doorbells and its timeouts: it is not told for what
 * it is entered.
 *
 * The registers of the local APIC, except those for interrupt command and end of interrupt, XCR0
 * and the page attribute table are the base's, which has the same memory types as the LWK. Instead
 * of setting a timer it sets `deadline`; if that is before `armed`, it leaves to have the base
 * notice.
 */
#ifndef INSULA_SHARED_CORE_H
#define INSULA_SHARED_CORE_H

#include <linux/types.h>

#define INSULA_SHARED_CORE_MAGIC	0x45524f4344524853ULL	/* "SHRDCORE", little endian */
#define INSULA_SHARED_CORE_REVISION	3

/* Why the LWK leaves. */
#define INSULA_LEAVE_IDLE		0	/* until it is rung, or its deadline */
#define INSULA_LEAVE_INTERRUPTED	1	/* by an interrupt of the base */
#define INSULA_LEAVE_DEADLINE		2	/* it has an earlier deadline */
#define INSULA_LEAVE_ENDED		3	/* for good: it has powered off, or crashed */

/* Times are those of the time stamp counter; U64_MAX: never. */
struct insula_shared_core {
	/* Written by the base before the first entry. */
	__u64 magic;		/* INSULA_SHARED_CORE_MAGIC */
	__u32 revision;		/* INSULA_SHARED_CORE_REVISION */
	__u32 vector;
	__u64 leave;		/* to be called with the page's address in RDI, on any stack */
	__u64 code;		/* address of the page with that code */
	__u64 code_frame;	/* physical address of that page, */
	__u64 frame;		/* and of this one */
	__u64 directory;	/* and of the page directory that maps both at first */
	/* Written by the base. */
	__u64 armed;		/* when it enters the LWK without being rung */
	__u64 abandon;		/* 1: leave for good by the next NMI */
	/* Bits of vectors, set by one side and cleared by the other. */
	__u64 pending[4];
	__u64 taken[4];
	/* NMIs taken and not handled yet; cleared by the base. */
	__u64 nmis;
	/* Written by the LWK. */
	__u64 reason;		/* INSULA_LEAVE_* */
	__u64 deadline;
	/* Written by the base. */
	__u64 interrupts_off;	/* 1: in an NMI, with those of the base off */
	__u64 virtual_vector;	/* 1: `vector` is not the local APIC's */
};

#endif
