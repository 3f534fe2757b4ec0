/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Switching a core between this kernel and another one that shares it: core_switch_code.S, and its
 * page, which core_switch.c prepares. Both kernels map both pages at the same addresses.
 *
 * Offsets into the page. At its start is struct insula_shared_core, which the other kernel knows.
 */
#ifndef INSULA_CORE_SWITCH_H
#define INSULA_CORE_SWITCH_H

#define SWITCH_BASE		0x100	/* registers of this kernel, while the other runs */
#define SWITCH_NODE		0x200	/* and the other way round */
#define SWITCH_GDT		0x300	/* in use while switching: SWITCH_GDT_ENTRIES descriptors */
#define SWITCH_GDTR		0x360	/* limit, base; also of the two below */
#define SWITCH_BASE_IDTR	0x370
#define SWITCH_NODE_IDTR	0x380
#define SWITCH_FAULT		0x390	/* of the other kernel: vector, error code, RIP */
#define SWITCH_BASE_IDT		0x400	/* exceptions, with this kernel's code segment */
#define SWITCH_NODE_IDT		0x600	/* and with the other kernel's */
#define SWITCH_STACK		0x1000	/* grows down to 0x800 */

#define SWITCH_EXCEPTIONS	32
/* 0x08 and 0x10: both kernels' code; 0x28: the other kernel's TSS; 0x40: this kernel's. */
#define SWITCH_GDT_ENTRIES	10
#define SWITCH_BASE_CS		0x10
#define SWITCH_NODE_CS		0x08
#define SWITCH_BASE_TSS		0x40
#define SWITCH_NODE_TSS		0x28

/* Registers of a kernel: offsets from SWITCH_BASE or SWITCH_NODE. */
#define STATE_CR0		0x00
#define STATE_CR3		0x08
#define STATE_CR4		0x10
#define STATE_RSP		0x18
#define STATE_GDTR		0x20
#define STATE_IDTR		0x30
#define STATE_DS		0x40
#define STATE_ES		0x42
#define STATE_FS		0x44
#define STATE_GS		0x46
#define STATE_LDTR		0x48
#define STATE_MSRS		0x50	/* eight */

/* Of struct insula_shared_core. */
#define SHARED_ABANDON		0x40
#define SHARED_NMIS		0x88
#define SHARED_REASON		0x90
#define SHARED_ENDED		3	/* INSULA_LEAVE_ENDED */

#ifndef __ASSEMBLY__
#include <linux/types.h>

struct insula_entry;
struct insula_shared_core;

/* A core that can be switched. */
struct insula_core_switch {
	struct insula_shared_core *shared;	/* the page */
	u32 apic_id;
	void *base_extended, *node_extended;	/* areas of XSAVE */
	u64 *tables;		/* see switch_build_tables() */
	bool entered;
	u64 own_nmis;		/* sent to end the other kernel: nothing for handlers of this one */
};

/*
 * Whether this processor and kernel can share a core. -EOPNOTSUPP: what is in the way is logged.
 */
int insula_core_switch_supported(void);

/* Prepare the switch of core `cpu` with the page at `page`. Sleeps. */
int insula_core_switch_init(struct insula_core_switch *core_switch, void *page, u32 cpu);
void insula_core_switch_exit(struct insula_core_switch *core_switch);

/* Have the next entry start the other kernel at `entry`, whose vector is `vector`. */
void insula_core_switch_reset(struct insula_core_switch *core_switch,
			      const struct insula_entry *entry, u8 vector);

/*
 * Run the other kernel until it leaves. In an interrupt handler on the core, with interrupts off,
 * or an NMI handler.
 */
void insula_core_switch_run(struct insula_core_switch *core_switch,
			    const struct insula_entry *entry);

/* Have this kernel handle the interrupts that came meanwhile. In an interrupt handler. */
void insula_core_switch_deliver(struct insula_core_switch *core_switch);

/* The same, of NMIs alone. Returns whether one came. Also in an NMI handler, which goes first. */
bool insula_core_switch_deliver_nmi(struct insula_core_switch *core_switch);

/* core_switch_code.S */
void insula_switch_start(void *page, u64 entry, u64 argument);
void insula_switch_enter(void *page);
void insula_switch_interrupt(u32 vector);
void insula_switch_leave(void);
void insula_switch_exceptions(void);
#endif

#endif
