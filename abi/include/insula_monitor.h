/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * insula_monitor.h - the monitor (VMM) of a confined node, and its memory
 *
 * A confined node's kernel runs as a guest of a thin monitor, on the node's own cores: see
 * docs/src/isolation.md. The monitor's memory is a memory object of its own, one chunk, which the
 * nested page table does not map: the node cannot reach it.
 *
 *	image | struct insula_monitor | page table | nested page table | struct insula_monitor_core,
 *	and what else belongs to each core: INSULA_MONITOR_CORE_SIZE bytes
 *
 * User space lays it out and passes it by INSULA_NODE_CONFINE. INSULA_NODE_START then starts all of
 * the node's cores in the monitor, the first of which enters the node's kernel; the others wait for
 * the kernel's start-up IPIs, which the monitor emulates.
 *
 * The module changes the nested page table while the node runs. Before it changes an entry that a
 * core may remember it counts that in `nested_changes`, and after it has taken access away it
 * waits until each core whose guest runs has carried out a FLUSH request. A core whose guest fails
 * to access memory, and has not seen that count before, flushes and tries again: it may have
 * remembered less than the new entry permits, or read the guest's own page table before that was
 * changed, too.
 *
 * A core that is paused leaves its state in its area, from which another core goes on: that of
 * a copy of the node. What a copy takes for physical memory is mapped to frames of a snapshot,
 * read-only, until it is written. Then the core stores the address as its `page_request`, rings
 * `page_doorbell`, and waits until the module has answered. To a copy, its cores have the APIC
 * ids of the original's.
 *
 * A core can be shared with a lightweight kernel (LWK), as one of the base can
 * (insula_shared_core.h): see struct insula_monitor_share. The LWK is another guest of the monitor,
 * but not confined: it has all memory, registers and ports.
 *
 * Words marked "monitor" are written by the monitor and read by the module; the other way round for
 * "module". The monitor is part of Insula, and trusted like the module.
 */
#ifndef INSULA_MONITOR_H
#define INSULA_MONITOR_H

#include <linux/types.h>

#define INSULA_MONITOR_MAGIC	0x524f54494e4f4dULL	/* "MONITOR", little endian */
#define INSULA_MONITOR_REVISION	6

/* Bytes of each core's area, which begins with its struct insula_monitor_core. */
#define INSULA_MONITOR_CORE_SIZE	0x20000
/* Offset, in a core's area, of the state that it leaves when it is paused; and bytes for it. */
#define INSULA_MONITOR_STATE		0x10000
#define INSULA_MONITOR_STATE_SIZE	0x6000
/* The same of the struct insula_shared_core of a lightweight kernel that shares the core. */
#define INSULA_MONITOR_SHARED		0x16000
/* And of the page with the code by which that kernel leaves; the monitor writes it. */
#define INSULA_MONITOR_SHARED_CODE	0x17000
/* Doorbells of other kernels that the node may ring: one for each channel, one of delegation. */
#define INSULA_MONITOR_DOORBELLS	65

/* Longest message of a monitor that failed, its terminating NUL included. */
#define INSULA_MONITOR_MESSAGE	256

/* What the node did, or the monitor met, that ended the node. */
enum insula_monitor_end {
	INSULA_MONITOR_RUNS = 0,
	INSULA_MONITOR_RESET = 1,	/* reset by a port, or a triple fault */
	INSULA_MONITOR_MEMORY = 2,	/* access to memory that is not the node's */
	INSULA_MONITOR_PORT = 3,	/* access to an I/O port */
	INSULA_MONITOR_MSR = 4,		/* write to a model-specific register */
	INSULA_MONITOR_INTERRUPT = 5,	/* interrupt to a core that is not the node's */
	INSULA_MONITOR_INSTRUCTION = 6,	/* instruction reserved to the monitor */
	INSULA_MONITOR_FAILED = 7,	/* the monitor itself failed */
	INSULA_MONITOR_NO_MEMORY = 8,	/* a copy: no memory for a page that it wrote */
};

/* The first event that ended the node. */
struct insula_violation {
	__u64 subject;		/* address, port, MSR, ICR value or exit code */
	__u64 value;		/* that was to be written; of memory the fault's error code */
	__u64 rip;		/* of the guest, a linear address */
	__u64 page_table;	/* its CR3 */
};

/* Words of a PCI function's configuration space, as far as ports reach. */
#define INSULA_FUNCTION_CONFIG_WORDS	64
/* Most PCI functions of a confined node, and most messages (MSI-X) of each. */
#define INSULA_MONITOR_FUNCTIONS	8
#define INSULA_FUNCTION_MESSAGES		32

/*
 * A PCI function of the node. What the node has as its configuration space is this memory: the
 * device's own stays the base's. Its MSI-X table is a page of memory, too, which the nested page
 * table has in the table's place: the module sends the device's interrupts on as that page says.
 */
struct insula_monitor_function {
	__u32 address;		/* bus << 8 | device << 3 | function, in segment 0 */
	__u32 messages_count;	/* of the table, at most INSULA_FUNCTION_MESSAGES */
	__u64 messages;		/* physical address of that page */
	__u32 config[INSULA_FUNCTION_CONFIG_WORDS];
	__u32 writable[INSULA_FUNCTION_CONFIG_WORDS];	/* bits that the node can change */
};

/* An entry of an MSI-X table (PCI Local Bus Specification 3.0, section 6.8.2.7). */
struct insula_message {
	__u32 address;
	__u32 address_high;
	__u32 data;
	__u32 control;		/* bit 0: masked */
};

/* Header of the monitor's memory. Addresses are physical. */
struct insula_monitor {
	__u64 magic;		/* INSULA_MONITOR_MAGIC */
	__u32 revision;		/* INSULA_MONITOR_REVISION */
	__u32 cores_count;
	__u64 cores;		/* the first core area */
	__u64 nested_page_table;	/* its root, four levels */
	__u64 nested_changes;	/* module: changes of what cores may remember */
	__u64 entry;		/* of the node's first core, as in struct insula_node_start */
	__u64 page_table;
	__u64 argument;
	__u32 ended;		/* monitor: enum insula_monitor_end */
	__u32 ended_core;	/* monitor: 1 + index of the core that writes `ended` */
	struct insula_violation violation;	/* monitor: before `ended` */
	__u64 functions;	/* the first struct insula_monitor_function */
	__u32 functions_count;
	__u32 reserved;
	__u8 message[INSULA_MONITOR_MESSAGE];	/* monitor: why it failed, zero-terminated */
	__u64 doorbells[INSULA_MONITOR_DOORBELLS];	/* module: words as INSULA_DOORBELL_* */
	__u64 page_doorbell;	/* module: the same, of requests for pages; 0: not a copy */
	__u64 goes_on;		/* 1: cores go on from the states in their areas */
	__u64 tsc_offset;	/* added to the time stamp counter of such cores */
	__u64 interrupt;	/* vector that the first of them gets as it goes on; 0: none */
};

/* A core's request for the page at an address, and the module's answers. */
#define INSULA_PAGE_WANTED		(1ULL << 0)
#define INSULA_PAGE_NO_MEMORY		(1ULL << 1)
#define INSULA_PAGE_FOREIGN		(1ULL << 2)	/* not memory of the node */

/* Requests to a core: bits of `requests`, followed by an NMI to the core. */
#define INSULA_MONITOR_REQUEST_INIT	(1ULL << 0)	/* an INIT of the node's kernel */
#define INSULA_MONITOR_REQUEST_STARTUP	(1ULL << 1)	/* a start-up IPI, vector as below */
#define INSULA_MONITOR_REQUEST_NMI	(1ULL << 2)	/* an NMI of the node's kernel */
#define INSULA_MONITOR_REQUEST_FLUSH	(1ULL << 3)	/* the nested page table has changed */
#define INSULA_MONITOR_REQUEST_STOP	(1ULL << 4)	/* the node has ended: park */
#define INSULA_MONITOR_REQUEST_PAUSE	(1ULL << 5)	/* execute the guest no more, until: */
#define INSULA_MONITOR_REQUEST_RESUME	(1ULL << 6)
#define INSULA_MONITOR_REQUEST_SHARE	(1ULL << 7)	/* look after the sharing LWK */
#define INSULA_MONITOR_STARTUP_SHIFT	56		/* the vector: the page's number */

/*
 * Head of the state of a paused core, at INSULA_MONITOR_STATE. What follows is the monitor's own. A
 * core goes on from it on processors of the same kind, with all of their features.
 */
#define INSULA_MONITOR_STATE_MAGIC	0x4554415453ULL	/* "STATE", little endian */
struct insula_monitor_state {
	__u64 magic;		/* INSULA_MONITOR_STATE_MAGIC; else there is none */
	__u64 tsc;		/* time stamp counter, as the guest sees it */
	__u64 running;		/* as of struct insula_monitor_core */
	__u64 in_service;	/* not 0: it handles an interrupt, and cannot go on elsewhere */
};

/* Causes of exits from the guest to the monitor, indices of `exits`. */
enum insula_monitor_exit {
	INSULA_EXIT_NMI = 0,		/* requests, and NMIs of the base */
	INSULA_EXIT_MSR = 1,		/* registers other than the interrupt command register */
	INSULA_EXIT_ICR = 2,		/* interrupt command register: IPIs */
	INSULA_EXIT_PORT = 3,
	INSULA_EXIT_CPUID = 4,
	INSULA_EXIT_MEMORY = 5,		/* nested page fault */
	INSULA_EXIT_OTHER = 6,
	INSULA_EXITS = 8,		/* room for as many */
};

/*
 * A lightweight kernel (LWK) that shares the core: it goes first. A SHARE request rings it, starts
 * it if `open` has changed, or ends it if that is 0. The node's kernel has the core when the LWK is
 * idle, while it handles interrupts (unless it had them off when the LWK was entered), and when the
 * LWK has had `budget` of `period`. Times are ticks of the time stamp counter; U64_MAX: never.
 *
 * The monitor has no timer: at `wake_at` it wants a SHARE request. When it sets that to an earlier
 * time than `armed`, and when the LWK has ended, it rings `doorbell`.
 */
struct insula_monitor_share {
	__u64 open;		/* module: number of its start; 0: it is to run no more */
	__u64 entry;		/* module: of the LWK, as in struct insula_node_start */
	__u64 page_table;
	__u64 argument;
	__u64 page;		/* module: address of its struct insula_shared_core there */
	__u64 period;		/* module */
	__u64 budget;		/* module */
	__u64 doorbell;		/* module: INSULA_DOORBELL_* */
	__u64 armed;		/* both: when the module sends a request */
	__u64 wake_at;		/* monitor */
	__u64 entered;		/* monitor: when it was first entered since its start; 0: not yet */
	__u64 runs;		/* monitor: 1: it may be entered, and its memory is in use */
	__u64 entries;		/* monitor: number of times that it was entered */
	__u64 fault;		/* monitor: exit code of what ended it; 0: itself, or the module */
};

/* Words of a struct pt_regs (arch/x86/include/asm/ptrace.h). */
#define INSULA_MONITOR_REGISTERS	21

/* Head of a core's area. */
struct insula_monitor_core {
	__u32 apic_id;
	__u32 index;		/* of the core in the node */
	__u64 header;		/* virtual address of struct insula_monitor */
	__u64 owned;		/* module: the node has this core now; others are not interrupted */
	__u64 running;		/* monitor: the guest's core runs; it does not wait for a start */
	__u64 requests;		/* INSULA_MONITOR_REQUEST_*, set and taken atomically */
	__u64 flushes;		/* monitor: number of FLUSH requests carried out */
	__u64 exits[INSULA_EXITS];	/* monitor: number of exits by cause */
	__u64 dropped;		/* monitor: interrupts to other kernels that ring no doorbell */
	__u64 paused;		/* monitor: 1 while the guest is paused, else 0 */
	__u64 registers[INSULA_MONITOR_REGISTERS];	/* monitor: of a paused guest, as pt_regs */
	__u64 guest_apic_id;	/* by which the node's kernel knows the core */
	__u64 page_request;	/* monitor: address | WANTED; module: 0 or another INSULA_PAGE_* */
	struct insula_monitor_share share;
};

#endif
