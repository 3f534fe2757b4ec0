/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * insula.h - interface between user space (`insula`) and insula.ko
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
 * INSULA_REVISION changes with every change of this file after a release that does more than
 * add calls.
 */
#ifndef INSULA_H
#define INSULA_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define INSULA_MAGIC		0x414c55534e49ULL	/* "INSULA", little endian */
#define INSULA_REVISION		3

/*
 * Longest name of an image or a node, its terminating NUL included. It consists of letters,
 * digits, '_', '.' and '-', and starts with neither of the last two.
 */
#define INSULA_NAME_MAX		64
/* Longest description of an image or a node, in bytes: opaque to the module. */
#define INSULA_DESCRIPTION_MAX	(256 * 1024)
/* Most cores in one node. */
#define INSULA_NODE_CPUS_MAX	256
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
};

struct insula_cpu {
	__u32 cpu;		/* the base's number for it */
	__u32 apic_id;		/* its local APIC's physical id */
	__u32 owner;		/* enum insula_cpu_owner */
	__u32 node;		/* id of the node that owns it, else 0 */
};

#define INSULA_MACHINE_X2APIC		(1U << 0)	/* APICs are in x2APIC mode */

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

/* INSULA_NODE_CREATE: take cores for a node. Answer: the node's descriptor. */
struct insula_node_create {
	char name[INSULA_NAME_MAX];
	__u64 description;	/* in: bytes kept for the owner, opaque */
	__u32 description_size;
	__u32 cpus_count;
	__u64 cpus;		/* in: array of __u32 core numbers; the first boots */
	__s32 memory;		/* in: descriptor of its memory object */
	__u32 flags;		/* 0 */
};

/*
 * INSULA_NODE_START: start the first core at `entry` in 64-bit mode, with interrupts off, flat
 * segments (CS 0x10, DS 0x18), `page_table` in CR3 and `argument` in RSI. `page_table` must
 * map the trampoline page (see struct insula_machine) and `entry` one to one. `entry`,
 * `page_table` and the two bytes below must lie in the node's memory; `argument` is not
 * checked.
 */
struct insula_node_start {
	__u64 entry;
	__u64 page_table;
	__u64 argument;
	__u64 power_off;	/* byte that the node sets to power off */
	__u64 reset;		/* byte that it sets to request a reset */
};

/* The states of OCI's runtime specification. */
enum insula_state {
	INSULA_CREATING = 0,	/* being assembled, belongs to a descriptor */
	INSULA_CREATED = 1,	/* its first core is being started */
	INSULA_RUNNING = 2,
	INSULA_STOPPED = 3,	/* cores returned or kept for it; memory stays readable */
};

/* Why a node is stopped. */
enum insula_reason {
	INSULA_REASON_NONE = 0,		/* it is not stopped */
	INSULA_REASON_POWER_OFF = 1,	/* it powered off */
	INSULA_REASON_RESET = 2,	/* it requested a reset */
	INSULA_REASON_STOPPED = 3,	/* stopped by the user */
	INSULA_REASON_KILLED = 4,	/* killed by the user */
	INSULA_REASON_CRASHED = 5,	/* its kernel crashed; stopped by its supervisor */
	INSULA_REASON_BASE = 6,		/* the base went down */
	INSULA_REASON_HALTED = 7,	/* its kernel halted; stopped by its supervisor */
	INSULA_REASON_HUNG = 8,		/* it was unresponsive; stopped by its supervisor */
	INSULA_REASON_DEVICE_LOST = 9,	/* the base lost one of its devices */
};

#define INSULA_NODE_SUPERVISED		(1U << 0)	/* a descriptor supervises it */
#define INSULA_NODE_CPUS_KEPT		(1U << 1)	/* stopped, and its cores kept for it */
#define INSULA_NODE_RETIRED		(1U << 2)	/* its (next) end is final: no restart */
#define INSULA_NODE_UNRESPONSIVE	(1U << 3)	/* running, but fails its health probe */

/* INSULA_NODE_INFO */
struct insula_node_info {
	char name[INSULA_NAME_MAX];
	__u32 id;
	__u32 state;		/* enum insula_state */
	__u32 reason;		/* enum insula_reason */
	__u32 cpus_count;	/* its cores or, if stopped, those that it had */
	__u64 cpus;		/* in: array of struct insula_cpu to fill, may be 0 */
	__u32 cpus_capacity;	/* in: its length */
	__u32 flags;		/* INSULA_NODE_* */
	__u64 memory_size;
	__u64 starts;		/* number of times it was started */
	__u64 started_ns;	/* CLOCK_BOOTTIME of the last start, 0 if not started */
	__u64 ended_ns;		/* CLOCK_BOOTTIME of the end, 0 if not ended */
	__u64 start_tsc;	/* time stamp counter on entering INSULA_NODE_START */
	__u64 entry_tsc;	/* and on the node's core, just before `entry` */
	__u64 power_off;	/* the last two of struct insula_node_start */
	__u64 reset;
};

/*
 * INSULA_NODE_STOP: stop its cores at once. STOPPED and KILLED retire the node; for the other
 * reasons its cores may be kept for its next start.
 */
struct insula_node_stop {
	__u32 reason;		/* STOPPED, KILLED, CRASHED, HALTED, HUNG, DEVICE_LOST */
	__u32 reserved;
};

/*
 * INSULA_NODE_SUPERVISE: this descriptor supervises the node until it is closed; repeating the
 * call replaces its arguments. When the node stops for one of the reasons in `keep_cpus`, it
 * keeps its cores until it is retired or started again, or the descriptor is closed. EBUSY:
 * another descriptor supervises it.
 */
struct insula_node_supervise {
	__u32 keep_cpus;	/* 1 << POWER_OFF, RESET, CRASHED, HALTED, HUNG, DEVICE_LOST */
	__u32 flags;		/* INSULA_NODE_UNRESPONSIVE, as long as it is */
};

/* Fail with ECANCELED if the node is retired: for restarts by policy, not by a user. */
#define INSULA_RECREATE_UNLESS_RETIRED	(1U << 0)

/*
 * INSULA_NODE_RECREATE: reassemble a stopped node under its name and id: it gets its cores and
 * devices back (taken again if they were returned, all or none), its memory is cleared, its
 * description replaced. The node then belongs to the descriptor as a new one does:
 * INSULA_NODE_START starts it, and closing the descriptor before that stops it again, for its
 * old reason. Mappings of its memory and its channels made before show a scratch page from
 * then on and no longer affect the node: to see its next run, map again.
 */
struct insula_node_recreate {
	__u64 description;	/* in: bytes kept for the owner, opaque */
	__u32 description_size;
	__u32 flags;		/* INSULA_RECREATE_* */
};

/*
 * INSULA_NODE_GROW: add cores and memory to a running node, all or nothing. The cores wait for
 * the node's kernel to start them by INIT and a start-up IPI, like its secondary cores at
 * boot. The object's chunks are appended to the node's and mapped for its devices; the object
 * is left empty. EALREADY: the node is not running. EOPNOTSUPP: its system calls are
 * delegated (insula_lwk.h).
 */
struct insula_node_grow {
	__u64 cpus;		/* in: array of __u32 core numbers */
	__u32 cpus_count;
	__s32 memory;		/* in: descriptor of an unclaimed memory object, or -1 */
};

/*
 * INSULA_NODE_SHRINK: remove cores and memory from a running node, after its kernel has taken
 * them offline: whatever it still uses is removed all the same. The cores are reset, but
 * never the first; memory is removed from the last chunk on, and none that the node was
 * started with.
 */
struct insula_node_shrink {
	__u64 cpus;		/* in: array of __u32 core numbers, all of the node's */
	__u32 cpus_count;
	__u32 chunks;		/* how many of its last chunks */
};

/*
 * INSULA_NODE_SHARE: attach memory that other nodes may share to a node that is being
 * assembled, such as a root file system that all of them read; by the descriptor that owns
 * the node. It is mapped for the node's devices, too. The object must be unclaimed or shared
 * by other nodes; the node keeps it until it is removed, through all its starts. Nothing
 * prevents a node from writing to it. EBUSY: the object belongs to an image or a node, or the
 * node has a shared object already.
 */
struct insula_node_share {
	__s32 memory;		/* in: descriptor of the memory object */
	__u32 flags;		/* 0 */
};

/* The processor's exception vector of NMIs. */
#define INSULA_VECTOR_NMI	2

/*
 * INSULA_NODE_INTERRUPT: send an interrupt to one of the node's cores. With INSULA_VECTOR_NMI
 * it is delivered as an NMI: send one only to a core that the node's kernel has brought
 * online (another has no handler, and a core that cannot handle an exception resets the whole
 * machine).
 */
struct insula_node_interrupt {
	__u32 index;		/* of the core in the node, 0 for the first */
	__u32 vector;		/* 32 to 255, or INSULA_VECTOR_NMI */
};

/*
 * INSULA_NODE_CHANNELS: lay out the node's channels, before its start. The INSULA_AREA_SIZE
 * (insula_channel.h) bytes at `start` must be cleared, contiguous memory of the node; the
 * node's ACPI tables should describe them.
 */
struct insula_channels {
	__u64 start;		/* a multiple of 4096 */
	__u32 count;		/* 1 to INSULA_CHANNELS_MAX */
	__u32 slots;		/* of each ring: a power of two */
};

/*
 * INSULA_CHANNEL_OPEN: open this side's endpoint of a channel, in a new session. In the base
 * on the node's descriptor: EBUSY while an endpoint is open in an earlier session. In a node
 * on the control descriptor: waits for the base. Returns a descriptor; closing it closes the
 * endpoint.
 */
struct insula_channel_open {
	__u32 index;		/* in: of the channel */
	__u32 slots;		/* out: of each ring */
};

/*
 * INSULA_CHANNEL_EVENTFD: bind an event of the channel to eventfds, on an endpoint's
 * descriptor, as KVM does: `ioeventfd` is written when the peer signals the event; writing
 * `irqfd` signals the event to the peer. Replaces earlier eventfds; -1 is none. Closing the
 * descriptor unbinds them.
 */
struct insula_channel_eventfd {
	__u32 event;		/* below INSULA_EVENTS */
	__s32 ioeventfd;
	__s32 irqfd;
	__u32 reserved;
};

/*
 * INSULA_NODE_DELEGATION: lay out the node's delegation area (insula_lwk.h), before its start.
 * Its pages must be cleared, contiguous memory of the node.
 */
struct insula_delegation {
	__u64 start;		/* a multiple of 4096 */
	__u32 pages;		/* INSULA_LWK_PAGES_MIN to INSULA_LWK_PAGES_MAX */
	__u32 reserved;
};

/* Offset of slots in a mirror's descriptor: above all addresses of programs. */
#define INSULA_MIRROR_SLOTS	(1ULL << 47)
/* Signal by which the module cancels a call of a proxy's thread. */
#define INSULA_MIRROR_CANCEL_SIGNAL	33

/*
 * INSULA_MIRROR_CREATE: create an mm mirror for the calling process, which becomes the
 * program's proxy. Returns a descriptor that only this process can map. EPIPE: the node is not
 * running. EAGAIN: its kernel does not accept programs (yet). ENOSPC: no page is left in its
 * delegation area.
 */
struct insula_mirror_create {
	__u64 start;		/* in: the program's part of the address space */
	__u64 end;		/* in: both multiples of 4096, below INSULA_MIRROR_SLOTS */
	__u32 slot;		/* out: the first thread's */
	__u32 flags;		/* 0 */
};

/* INSULA_MIRROR_START: start the program, once. The caller is attached to its slot. */
struct insula_mirror_start {
	__u64 arguments_size;	/* of what INSULA_LWK_ARGUMENTS copies */
	__u64 descriptor;	/* number of this descriptor */
	__u64 slots;		/* address at which the proxy has mapped INSULA_MIRROR_SLOTS */
	/* Bit number - 1 for each signal ignored, or blocked, at start: */
	__u64 ignored;
	__u64 blocked;
};

/*
 * INSULA_MIRROR_SIGNAL: queue a signal to the program that the calling thread of its proxy has
 * caught: the start of its siginfo_t.
 */
struct insula_mirror_signal {
	__s32 signal;
	__s32 error;		/* si_errno */
	__s32 code;		/* si_code */
	__u32 padding;		/* anything */
	__u64 fields[4];	/* what depends on the code */
};

/*
 * INSULA_MIRROR_FORK: create a mirror for a child of the program, whose proxy will be a child
 * of the calling process. Returns a descriptor that is unusable until the child has called
 * INSULA_MIRROR_ADOPT: then only the child can map it, and the child's calling thread is
 * attached to the first slot. ENOSPC: as for INSULA_MIRROR_CREATE.
 */
struct insula_mirror_fork {
	__u64 slot;		/* out: the first thread's */
	__u64 process;		/* out: the child's, see insula_lwk.h */
};

/* INSULA_MIRROR_INVALIDATE: execute the request INSULA_LWK_INVALIDATE. */
struct insula_mirror_invalidate {
	__u64 start;
	__u64 size;
	__u64 ticket;
	__u64 flags;		/* INSULA_LWK_INVALIDATE_NO_QUIESCE */
};

/* An IOMMU domain restricts its DMA to the node's memory. */
#define INSULA_DEVICE_IOMMU	(1U << 0)
/* The node has it; without this flag it was returned to the base. */
#define INSULA_DEVICE_ATTACHED	(1U << 1)

/*
 * INSULA_NODE_DEVICE_ADD: take a PCI function from the base for a node that is being
 * assembled, by the descriptor that owns the node, and reset it. It must be alone on its bus
 * and use message-signalled interrupts without remapping. When the node ends for any reason,
 * the function's DMA is disabled, it is reset and returned to the driver that the base had
 * for it. The node's memory must be complete except for what INSULA_NODE_GROW adds.
 */
struct insula_device {
	__u32 segment;
	__u32 bus;
	__u32 function;		/* device number * 8 + function number */
	__u32 flags;		/* INSULA_DEVICE_*; 0 when adding */
};

/* INSULA_NODE_DEVICES: a node's devices or, if it is stopped, those that it had. */
struct insula_devices {
	__u64 devices;		/* in: array of struct insula_device to fill, may be 0 */
	__u32 capacity;		/* in: its length */
	__u32 count;		/* out: devices there are (fills at most capacity) */
};

/*
 * INSULA_NODE_GRANT_TABLE: create a grant table, by which the calling process grants its memory
 * to the running node, whose kernel supports insula_grant.h. Returns a descriptor. A grant
 * lasts until it is revoked: by INSULA_GRANT_REVOKE, by the base's memory management when it
 * needs to, or by closing the descriptor. A node that does not release a revoked range in
 * time is stopped with INSULA_REASON_HUNG.
 */
struct insula_grant_table {
	__u32 id;		/* out: by which the node imports it */
	__u32 timeout_ms;	/* in: longest time for the node to release a range */
};

#define INSULA_GRANT_TIMEOUT_MIN_MS	10
#define INSULA_GRANT_TIMEOUT_MAX_MS	10000

/*
 * INSULA_GRANT_ADD: grant a range to the node. Its pages are faulted in as needed. May be
 * repeated: pages revoked in the meantime are granted again.
 */
struct insula_grant_add {
	__u64 address;		/* in the granting process; like size a multiple of 4096 */
	__u64 size;
	__u64 pages;		/* in: array of __u64 physical addresses to fill, may be 0 */
	__u32 capacity;		/* in: its length */
	__u32 flags;		/* INSULA_GRANT_WRITABLE: the node may write it */
};

/* INSULA_GRANT_REVOKE: on return the node no longer uses the range. */
struct insula_grant_revoke {
	__u64 address;
	__u64 size;
};

/*
 * INSULA_GRANT_IMPORT: in a node, open what a grant table grants to it. Returns a descriptor,
 * to be mapped by mmap() at offset = address in the granting process; pages that are not, or
 * no longer, granted fault with SIGBUS.
 */
struct insula_grant_import {
	__u32 table;		/* id of the grant table */
	__u32 reserved;
};

#define INSULA_IOC		'I'

/* control */
#define INSULA_HELLO		_IOWR(INSULA_IOC, 0x00, struct insula_hello)
#define INSULA_MACHINE		_IOWR(INSULA_IOC, 0x01, struct insula_machine)
#define INSULA_POOL_RESERVE	_IOW(INSULA_IOC, 0x02, struct insula_pool)
#define INSULA_POOL_RELEASE	_IO(INSULA_IOC, 0x03)
#define INSULA_MEMORY_CREATE	_IO(INSULA_IOC, 0x10)
#define INSULA_IMAGE_ADD	_IOW(INSULA_IOC, 0x20, struct insula_image)
#define INSULA_IMAGE_OPEN	_IOW(INSULA_IOC, 0x21, struct insula_name)
#define INSULA_IMAGE_REMOVE	_IOW(INSULA_IOC, 0x22, struct insula_name)
#define INSULA_IMAGE_LIST	_IOWR(INSULA_IOC, 0x23, struct insula_names)
/* Like INSULA_IMAGE_ADD, but replaces an image of that name. */
#define INSULA_IMAGE_REPLACE	_IOW(INSULA_IOC, 0x24, struct insula_image)
#define INSULA_NODE_CREATE	_IOW(INSULA_IOC, 0x30, struct insula_node_create)
#define INSULA_NODE_OPEN	_IOW(INSULA_IOC, 0x31, struct insula_name)
#define INSULA_NODE_LIST	_IOWR(INSULA_IOC, 0x32, struct insula_names)

/* memory */
#define INSULA_MEMORY_GROW	_IOW(INSULA_IOC, 0x11, struct insula_request)
#define INSULA_MEMORY_CHUNKS	_IOWR(INSULA_IOC, 0x12, struct insula_chunks)
#define INSULA_MEMORY_COPY	_IOW(INSULA_IOC, 0x13, struct insula_copy)

/* node */
#define INSULA_NODE_START	_IOW(INSULA_IOC, 0x33, struct insula_node_start)
#define INSULA_NODE_STOP	_IOW(INSULA_IOC, 0x34, struct insula_node_stop)
#define INSULA_NODE_INFO	_IOWR(INSULA_IOC, 0x35, struct insula_node_info)
#define INSULA_NODE_REMOVE	_IO(INSULA_IOC, 0x36)	/* not while it runs: EBUSY */
#define INSULA_NODE_MEMORY	_IO(INSULA_IOC, 0x37)	/* returns its memory object */
#define INSULA_NODE_INTERRUPT	_IOW(INSULA_IOC, 0x38, struct insula_node_interrupt)
#define INSULA_NODE_SUPERVISE	_IOW(INSULA_IOC, 0x39, struct insula_node_supervise)
#define INSULA_NODE_RETIRE	_IO(INSULA_IOC, 0x3a)	/* its next end is final */
#define INSULA_NODE_RECREATE	_IOW(INSULA_IOC, 0x3b, struct insula_node_recreate)
#define INSULA_NODE_GROW	_IOW(INSULA_IOC, 0x3c, struct insula_node_grow)
#define INSULA_NODE_SHRINK	_IOW(INSULA_IOC, 0x3d, struct insula_node_shrink)
#define INSULA_NODE_SHARE	_IOW(INSULA_IOC, 0x3e, struct insula_node_share)
#define INSULA_NODE_SHARED	_IO(INSULA_IOC, 0x3f)	/* returns that object; ENODATA: none */
#define INSULA_NODE_DEVICE_ADD	_IOW(INSULA_IOC, 0x60, struct insula_device)
#define INSULA_NODE_DEVICES	_IOWR(INSULA_IOC, 0x61, struct insula_devices)

#define INSULA_NODE_CHANNELS	_IOW(INSULA_IOC, 0x50, struct insula_channels)

/* node in the base, control in a node */
#define INSULA_CHANNEL_OPEN	_IOWR(INSULA_IOC, 0x51, struct insula_channel_open)

#define INSULA_NODE_GRANT_TABLE	_IOWR(INSULA_IOC, 0x90, struct insula_grant_table)

/* grant table */
#define INSULA_GRANT_ADD	_IOW(INSULA_IOC, 0x91, struct insula_grant_add)
#define INSULA_GRANT_REVOKE	_IOW(INSULA_IOC, 0x92, struct insula_grant_revoke)

/* control in a node */
#define INSULA_GRANT_IMPORT		_IOW(INSULA_IOC, 0x93, struct insula_grant_import)

/* channel */
#define INSULA_CHANNEL_RING	_IO(INSULA_IOC, 0x52)	/* EPIPE: the peer disconnected */
#define INSULA_CHANNEL_EVENTFD	_IOW(INSULA_IOC, 0x53, struct insula_channel_eventfd)

#define INSULA_NODE_DELEGATION	_IOW(INSULA_IOC, 0x70, struct insula_delegation)
#define INSULA_MIRROR_CREATE	_IOWR(INSULA_IOC, 0x71, struct insula_mirror_create)

/* mirror */
#define INSULA_MIRROR_START	_IOW(INSULA_IOC, 0x72, struct insula_mirror_start)
#define INSULA_MIRROR_SLOT_ALLOC	_IO(INSULA_IOC, 0x73)	/* returns a slot */
/* Called by threads of the proxy, with the slot itself as argument: */
#define INSULA_MIRROR_SLOT_ATTACH	_IO(INSULA_IOC, 0x74)	/* the calling thread */
#define INSULA_MIRROR_SLOT_FREE		_IO(INSULA_IOC, 0x75)
#define INSULA_MIRROR_SLOT_WAIT		_IO(INSULA_IOC, 0x76)	/* for a call. EPIPE: node ended */
#define INSULA_MIRROR_SLOT_WAKE		_IO(INSULA_IOC, 0x77)	/* the LWK's sleeping thread */
#define INSULA_MIRROR_SIGNAL	_IOW(INSULA_IOC, 0x78, struct insula_mirror_signal)
#define INSULA_MIRROR_INVALIDATE	_IOW(INSULA_IOC, 0x79, struct insula_mirror_invalidate)
#define INSULA_MIRROR_FORK	_IOR(INSULA_IOC, 0x7a, struct insula_mirror_fork)
#define INSULA_MIRROR_ADOPT	_IO(INSULA_IOC, 0x7b)	/* EBUSY: another process has */

/* memory of an image, node */
#define INSULA_DESCRIPTION	_IOWR(INSULA_IOC, 0x40, struct insula_description)

#endif
