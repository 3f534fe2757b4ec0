/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * insula_hotplug.h - CPU and memory hotplug requests of the base to the kernel of a Linux node
 *
 * Requests travel on channel INSULA_CHANNEL_HOTPLUG, whose node end the module in the node
 * holds. Each is a struct insula_hotplug_request of one of the kinds below, and is answered by
 * a struct insula_hotplug_reply of the same kind before the next one is read. Requests are
 * idempotent.
 */
#ifndef INSULA_HOTPLUG_H
#define INSULA_HOTPLUG_H

#include <linux/types.h>

enum insula_hotplug_kind {
	INSULA_HOTPLUG_QUERY = 1,		/* change nothing; the reply describes the node */
	INSULA_HOTPLUG_CPU_ONLINE = 2,
	INSULA_HOTPLUG_CPU_OFFLINE = 3,		/* and keep it offline */
	INSULA_HOTPLUG_MEMORY_ADD = 4,
	INSULA_HOTPLUG_MEMORY_REMOVE = 5,	/* migrate its pages away, then remove it */
};

struct insula_hotplug_request {
	__u32 apic_id;		/* of the core */
	__u32 reserved;
	__u64 start;		/* of the memory */
	__u64 size;
};

struct insula_hotplug_reply {
	__s32 error;		/* 0, or the negative errno of the node's kernel */
	__u32 reserved;
	__u64 memory_block;	/* unit of memory hotplug: size and alignment, in bytes */
};

#endif
