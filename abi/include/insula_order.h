/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * insula_order.h - what the base asks the kernel of a Linux node for, so that the node can
 * get more, or less, while it runs.
 *
 * Orders are messages on channel INSULA_CHANNEL_ORDERS, of which the module in the node has
 * the end. Each is a struct insula_order of one of the kinds below, and is answered by a
 * struct insula_answer of the same kind before the next one is looked at. An order that
 * has been obeyed already is obeyed again by doing nothing.
 */
#ifndef INSULA_ORDER_H
#define INSULA_ORDER_H

#include <linux/types.h>

enum insula_order_kind {
	INSULA_ORDER_ABOUT = 1,		/* nothing; the answer tells of the node */
	INSULA_ORDER_CPU_ON = 2,	/* bring this core online */
	INSULA_ORDER_CPU_OFF = 3,	/* offline, and leave it so */
	INSULA_ORDER_MEMORY_ADD = 4,	/* use this memory */
	INSULA_ORDER_MEMORY_REMOVE = 5,	/* move all out of it, and use it no more */
};

struct insula_order {
	__u32 apic_id;		/* of the core */
	__u32 reserved;
	__u64 start;		/* of the memory */
	__u64 size;
};

struct insula_answer {
	__s32 error;		/* 0, or the negative error of the node's kernel */
	__u32 reserved;
	__u64 memory_block;	/* memory comes and goes in multiples of it, so aligned */
};

#endif
