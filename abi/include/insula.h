/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * insula.h - interface between user space (`insula`) and insula.ko: the machine, memory objects
 * and images. Nodes are in insula_node.h, mirrors in insula_mirror.h.
 *
 * One device, /dev/insula, and six kinds of descriptor:
 *
 *   control   open("/dev/insula"). The first call must be INSULA_HELLO; until both sides have
 *             agreed on a revision every other call fails with EPROTO. Its calls report the
 *             machine's resources (INSULA_MACHINE), fill and empty the pool, and create or
 *             open memory objects, images and nodes.
 *
 *   memory    A memory object: an ordered list of chunks of physical memory, taken from the
 *             base or from the pool. It starts empty and grows. Its bytes are addressed by an
 *             offset that runs through the chunks in order; mmap() maps them at that offset.
 *             Any I/O works on a mapping, and futexes in it are shared. Images and nodes are
 *             each backed by one. It lives as long as a descriptor, a mapping, an image or a
 *             node refers to it; with the last reference its memory is cleared and returned:
 *             pages with I/O in flight once that has ended.
 *
 *   node      Cores taken from the base and the right to start them. Until INSULA_NODE_START
 *             succeeds the node belongs to the descriptor and goes with it, whatever ended the
 *             process; from then on it belongs to the module and lasts until
 *             INSULA_NODE_REMOVE. One descriptor at a time may be the supervisor's: then the
 *             cores of a stopped node can be kept for its next start (INSULA_NODE_SUPERVISE).
 *             poll() reports POLLIN while the node is stopped, POLLPRI once it is retired,
 *             POLLHUP once it is removed.
 *
 *   channel   One endpoint of a channel between the base and a node: mmap() maps its rings,
 *             read() waits for its doorbell as of an eventfd, and poll() works. See
 *             insula_channel.h and docs/src/channels.md.
 *
 *   mirror    An mm mirror: the address space of a program on a lightweight kernel, for its
 *             proxy, the process that executes its system calls (insula_lwk.h). mmap() at
 *             offset = address maps the program's own pages; at INSULA_MIRROR_SLOTS + 4096 *
 *             page number a page of its syscall slots. Closing it ends the program.
 *
 *   grants    A grant table: memory of one process that a node may use (insula_grant.h).
 *             Closing it revokes all grants.
 *
 * In a Linux node the same module provides the node's endpoints: there the control descriptor
 * supports only INSULA_HELLO, INSULA_CHANNEL_OPEN and INSULA_GRANT_IMPORT.
 *
 * The module knows no kernel format and no firmware table. To start a node: copy bytes into a
 * memory object, attach it to a node, and pass the address at which its first core enters
 * 64-bit mode. A node reports its end by storing a non-zero byte at one of two addresses that
 * it was given.
 *
 * Every structure is made of fixed-width fields in natural alignment with all padding
 * explicit; reserved fields and unknown flags must be zero, or the call fails with EINVAL.
 * Addresses and sizes are in bytes, physical unless said otherwise. User pointers are passed
 * as __u64.
 *
 * INSULA_REVISION changes with every change of these files after a release that does more than
 * add calls.
 */
#ifndef INSULA_H
#define INSULA_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define INSULA_MAGIC		0x414c55534e49ULL	/* "INSULA", little endian */
#define INSULA_REVISION		4

/*
 * Longest name of an image or a node, its terminating NUL included. It consists of letters,
 * digits, '_', '.' and '-', and starts with neither of the last two.
 */
#define INSULA_NAME_MAX		64
/* Longest description of an image or a node, in bytes: opaque to the module. */
#define INSULA_DESCRIPTION_MAX	(256 * 1024)
/* Unit in which memory is taken, and its alignment: one large page. */
#define INSULA_GRANULE		(2ULL << 20)
/* End of the memory in which a core can be started (lowmem). */
#define INSULA_LOWMEM_LIMIT	(1ULL << 20)

#define INSULA_NUMA_ANY		(-1)

/* INSULA_HELLO: agree on a revision. In: the caller's revision. Out: the module's. */
struct insula_hello {
	__u64 magic;
	__u32 revision;
	__u32 reserved;
};

/* Owner of a core. */
enum insula_cpu_owner {
	INSULA_CPU_BASE = 0,	/* the base, which has it online or offline */
	INSULA_CPU_POOL = 1,	/* taken, and free for a node */
	INSULA_CPU_NODE = 2,	/* a node */
	INSULA_CPU_SHARED = 3,	/* the base, which shares it with a node */
};

struct insula_cpu {
	__u32 cpu;		/* the base's number for it */
	__u32 apic_id;		/* its local APIC's physical id */
	__u32 owner;		/* enum insula_cpu_owner */
	__u32 node;		/* id of the node that owns or shares it, else 0 */
};

#define INSULA_MACHINE_X2APIC		(1U << 0)	/* APICs are in x2APIC mode */
#define INSULA_MACHINE_VIRTUALIZES	(1U << 1)	/* INSULA_NODE_CONFINE works */
#define INSULA_MACHINE_VMX		(1U << 2)	/* by Intel's VMX; else by AMD's SVM */

/* INSULA_MACHINE: resources of the machine, and those that the module has taken. */
struct insula_machine {
	__u64 cpus;		/* in: array of struct insula_cpu to fill, may be 0 */
	__u32 cpus_capacity;	/* in: its length */
	__u32 cpus_count;	/* out: cores there are (fills at most capacity) */
	__u32 flags;		/* out: INSULA_MACHINE_* */
	__u32 tsc_khz;		/* out: frequency of the time stamp counter */
	__u64 trampoline;	/* out: page that a start maps one to one, below 1 MiB */
	__u64 lowmem_total;	/* out: memory below 1 MiB available to nodes */
	__u64 lowmem_free;	/* out: of that, not taken */
	__u64 pool_total;	/* out: memory in the pool, used or not */
	__u64 pool_free;	/* out: of that, not used by an object */
	__u64 allocated;	/* out: memory of all objects, except that of the pool */
	__u64 quarantined;	/* out: unused, kept until I/O on it has ended */
};

/*
 * Memory to take. Each chunk lies in [min_phys, max_phys); max_phys 0 means no bound. With
 * max_phys <= INSULA_LOWMEM_LIMIT the memory comes from the firmware's RAM below 1 MiB, in
 * pages and as one chunk; else in granules. New memory is zero.
 */
struct insula_request {
	__u64 size;		/* multiple of INSULA_GRANULE (of 4096 for lowmem) */
	__u64 min_phys;
	__u64 max_phys;
	__u64 chunk_max;	/* largest chunk to take, 0 for no limit */
	__s32 numa_node;	/* or INSULA_NUMA_ANY */
	__u32 flags;		/* INSULA_REQUEST_* */
};

/*
 * Take blocks: each chunk has exactly chunk_max bytes, a power of two that divides the size,
 * and is aligned to it. Not below 1 MiB.
 */
#define INSULA_REQUEST_BLOCKS		(1U << 0)

/* INSULA_POOL_RESERVE: take cores and memory ahead of need. All or nothing. */
struct insula_pool {
	__u64 cpus;		/* in: array of __u32 core numbers */
	__u32 cpus_count;
	__u32 reserved;
	struct insula_request memory;	/* size 0: no memory */
};

struct insula_chunk {
	__u64 start;
	__u64 size;
};

/* INSULA_MEMORY_CHUNKS: physical addresses of the object's memory, in order of offset. */
struct insula_chunks {
	__u64 chunks;		/* in: array of struct insula_chunk to fill, may be 0 */
	__u32 capacity;		/* in: its length */
	__u32 count;		/* out: chunks there are (fills at most capacity) */
};

/*
 * INSULA_MEMORY_COPY: copy bytes from another object to this one. Faster than copying between
 * two mappings, since no page of either has to be mapped.
 */
struct insula_copy {
	__u64 from;		/* offset in the other object */
	__u64 to;		/* offset in this one */
	__u64 size;
	__s32 source;		/* descriptor of the other */
	__u32 flags;		/* 0 */
};

/*
 * INSULA_MEMORY_SHOW: create an object that shows the content of another one, which must not be
 * changed any more, until it is written: then a page becomes the new object's own. Its chunks are
 * where a copy of a confined node takes its memory for; the frames are elsewhere. Returns a
 * descriptor. Writable mappings make pages own when they are accessed, others only show them.
 */
struct insula_memory_show {
	__u64 chunks;		/* in: array of struct insula_chunk, in order of offset */
	__u32 count;		/* of these; together at most as large as the other object */
	__s32 source;		/* descriptor of the other object */
};

/* INSULA_MEMORY_USE: bytes that an object takes, without what it shows of another. */
struct insula_memory_use {
	__u64 own;
	__u64 shown;		/* bytes that it shows, and does not own */
};

/* INSULA_IMAGE_ADD: keep a memory object under a name. */
struct insula_image {
	char name[INSULA_NAME_MAX];
	__u64 description;	/* in: bytes kept for the owner, opaque */
	__u32 description_size;
	__s32 memory;		/* in: descriptor of the memory object */
};

/* INSULA_IMAGE_OPEN, INSULA_NODE_OPEN: answer is a new descriptor. */
struct insula_name {
	char name[INSULA_NAME_MAX];
};

/*
 * INSULA_IMAGE_LIST, INSULA_NODE_LIST: the names, oldest first, each in
 * INSULA_NAME_MAX bytes.
 */
struct insula_names {
	__u64 names;		/* in: array of struct insula_name to fill, may be 0 */
	__u32 capacity;		/* in: its length */
	__u32 count;		/* out: names there are (fills at most capacity) */
};

/* INSULA_DESCRIPTION: on a node's descriptor, or on one from INSULA_IMAGE_OPEN. */
struct insula_description {
	__u64 bytes;		/* in: buffer to fill, may be 0 */
	__u32 capacity;		/* in: its size */
	__u32 size;		/* out: bytes there are (fills at most capacity) */
};

#define INSULA_IOC		'I'

/* control */
#define INSULA_HELLO		_IOWR(INSULA_IOC, 0x00, struct insula_hello)
#define INSULA_MACHINE		_IOWR(INSULA_IOC, 0x01, struct insula_machine)
#define INSULA_POOL_RESERVE	_IOW(INSULA_IOC, 0x02, struct insula_pool)
#define INSULA_POOL_RELEASE	_IO(INSULA_IOC, 0x03)
#define INSULA_MEMORY_CREATE	_IO(INSULA_IOC, 0x10)
#define INSULA_MEMORY_SHOW	_IOW(INSULA_IOC, 0x14, struct insula_memory_show)
/*
 * Returns a descriptor of the base's memory. Ranges of RAM can be mapped, shared and to be read;
 * ranges that are reserved (IORES_DESC_RESERVED, as by memmap=SIZE$START) also to be written,
 * unless lockdown refuses that of /dev/mem (-EPERM). The offset is the physical address. Refused
 * as /proc/kcore is.
 */
#define INSULA_BASE_MEMORY	_IO(INSULA_IOC, 0x1a)
#define INSULA_IMAGE_ADD	_IOW(INSULA_IOC, 0x20, struct insula_image)
#define INSULA_IMAGE_OPEN	_IOW(INSULA_IOC, 0x21, struct insula_name)
#define INSULA_IMAGE_REMOVE	_IOW(INSULA_IOC, 0x22, struct insula_name)
#define INSULA_IMAGE_LIST	_IOWR(INSULA_IOC, 0x23, struct insula_names)
/* Like INSULA_IMAGE_ADD, but replaces an image of that name. */
#define INSULA_IMAGE_REPLACE	_IOW(INSULA_IOC, 0x24, struct insula_image)

/* memory */
#define INSULA_MEMORY_GROW	_IOW(INSULA_IOC, 0x11, struct insula_request)
#define INSULA_MEMORY_CHUNKS	_IOWR(INSULA_IOC, 0x12, struct insula_chunks)
#define INSULA_MEMORY_COPY	_IOW(INSULA_IOC, 0x13, struct insula_copy)
#define INSULA_MEMORY_USE	_IOR(INSULA_IOC, 0x15, struct insula_memory_use)
/*
 * Of an object that shows another one. STORE_SET: the pages that are its own are the other one's
 * working set from now on, if that has none. OWN_SET: make those of that set its own.
 */
#define INSULA_MEMORY_STORE_SET	_IO(INSULA_IOC, 0x16)
#define INSULA_MEMORY_OWN_SET	_IO(INSULA_IOC, 0x17)
/*
 * The working set of an object that others show, as offsets and sizes of whole pages in it, in
 * ascending order. LIST_SET: as INSULA_MEMORY_CHUNKS. GIVE_SET: give it one, if it has none, of
 * `capacity` extents with at most INSULA_WORKING_SET_MAX pages.
 */
#define INSULA_MEMORY_LIST_SET	_IOWR(INSULA_IOC, 0x18, struct insula_chunks)
#define INSULA_MEMORY_GIVE_SET	_IOW(INSULA_IOC, 0x19, struct insula_chunks)
/*
 * Most pages of a working set: a copy that wrote more before it was ready did other things than
 * start, and later ones need not take memory for these.
 */
#define INSULA_WORKING_SET_MAX	2048

/* memory of an image, node */
#define INSULA_DESCRIPTION	_IOWR(INSULA_IOC, 0x40, struct insula_description)

#endif
