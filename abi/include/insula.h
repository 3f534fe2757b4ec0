/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * insula.h - what crosses the boundary between `insula` and insula.ko
 *
 * One device, /dev/insula, and five kinds of descriptor:
 *
 *   control   open("/dev/insula"). The first call must be INSULA_HELLO; until
 *             both sides have agreed on a revision every other call fails with
 *             EPROTO. From it one learns what the machine has (INSULA_MACHINE),
 *             fills and empties the pool, and makes or finds the other two.
 *
 *   memory    A memory object: an ordered list of chunks of physical memory,
 *             taken from the base or from the pool. It starts empty and grows.
 *             Its bytes are addressed by an offset that runs through the chunks
 *             in order, and can be mapped at that offset by mmap(); any I/O can
 *             be done on a mapping, and futexes in it are shared. Images and
 *             nodes both rest on one. It lives as long as a descriptor, a
 *             mapping, an image or a node refers to it; with the last of these
 *             its memory is cleared and given back. INSULA_MEMORY_REVOKE takes it
 *             from all processes at once. Pages on which I/O has not ended then
 *             go back when it has.
 *
 *   node      Cores taken from the base and the right to start them. Until
 *             INSULA_NODE_START succeeds the node belongs to the descriptor and
 *             goes with it, whatever ended the process; from then on it belongs
 *             to the module and lasts until INSULA_NODE_REMOVE. One descriptor
 *             at a time may be its supervisor's: then cores of a node that has
 *             ended can be kept for its next start (INSULA_NODE_SUPERVISE).
 *             poll() tells POLLIN while the node is stopped, POLLPRI once it is
 *             retired, POLLHUP when it is gone.
 *
 *   channel   One end of a channel between the base and a node: its rings are
 *             mapped by mmap(), read() waits until it is rung, as of an eventfd,
 *             and poll() works. See insula_channel.h and docs/src/channels.md.
 *
 *   space     The address space of a program on a node of the lightweight kernel, for
 *             the process that executes its system calls: see insula_lwk.h. Mapped by
 *             mmap() at offset = address it shows the program's own pages; at
 *             INSULA_SPACE_DESKS + 4096 * page number a page of its desks. The program
 *             ends with the descriptor.
 *
 * In a Linux node the same module gives the other ends of the node's channels: there
 * INSULA_HELLO and INSULA_CHANNEL_OPEN are all that the control descriptor knows.
 *
 * The module knows no kernel format and no firmware table. A start is: copy
 * bytes into a memory object, attach it to a node, and name the address at which
 * its first core is to begin in 64-bit mode. A node tells that it has ended by
 * storing a non-zero byte at one of two addresses that it was given.
 *
 * Every structure is made of fixed-width fields in natural alignment with all
 * padding explicit; reserved fields and unknown flags must be zero, or the call
 * fails with EINVAL. Addresses and sizes are in bytes, physical unless said
 * otherwise. User pointers travel as __u64.
 *
 * INSULA_REVISION changes with every change of this file after a release that is
 * not a pure addition of calls.
 */
#ifndef INSULA_H
#define INSULA_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define INSULA_MAGIC		0x414c55534e49ULL	/* "INSULA", little endian */
#define INSULA_REVISION		1

/*
 * Longest name of an image or a node, its terminating NUL included. It is of
 * letters, digits, '_', '.' and '-', and begins with neither of the last two.
 */
#define INSULA_NAME_MAX		64
/* Longest description that the module keeps for its owner, in bytes. */
#define INSULA_DESCRIPTION_MAX	(256 * 1024)
/* Most cores in one node. */
#define INSULA_NODE_CPUS_MAX	256
/* Size and alignment of what memory is taken in: one large page. */
#define INSULA_GRANULE		(2ULL << 20)
/* Below this address lies the memory in which a core can be started. */
#define INSULA_LOW_LIMIT	(1ULL << 20)

#define INSULA_NUMA_ANY		(-1)

/* INSULA_HELLO: agree on a revision. In: the caller's. Out: the module's. */
struct insula_hello {
	__u64 magic;
	__u32 revision;
	__u32 reserved;
};

/* Who has a core. */
enum insula_cpu_owner {
	INSULA_CPU_BASE = 0,	/* the base: online, or offline by its own wish */
	INSULA_CPU_POOL = 1,	/* taken, waiting for a node */
	INSULA_CPU_NODE = 2,	/* a node's */
};

struct insula_cpu {
	__u32 cpu;		/* the base's number for it */
	__u32 apic_id;		/* its local APIC's physical id */
	__u32 owner;		/* enum insula_cpu_owner */
	__u32 node;		/* id of the node that has it, else 0 */
};

#define INSULA_MACHINE_X2APIC		(1U << 0)	/* APICs are in x2APIC mode */

/* INSULA_MACHINE: what the module sees and holds. */
struct insula_machine {
	__u64 cpus;		/* in: array of struct insula_cpu to fill, may be 0 */
	__u32 cpus_capacity;	/* in: its length */
	__u32 cpus_count;	/* out: cores there are (fills at most capacity) */
	__u32 flags;		/* out: INSULA_MACHINE_* */
	__u32 tsc_khz;		/* out: frequency of the time stamp counter */
	__u64 trampoline;	/* out: page that a start maps one to one, below 1 MiB */
	__u64 low_total;	/* out: memory below 1 MiB that nodes can have */
	__u64 low_free;		/* out: of that, not taken */
	__u64 pool_total;	/* out: memory in the pool, used or not */
	__u64 pool_free;	/* out: of that, not used by an object */
	__u64 taken;		/* out: all memory of all objects, pool excluded */
	__u64 withheld;		/* out: nobody's, kept until some I/O on it has ended */
};

/*
 * Memory to take. The range [min_phys, max_phys) bounds where each chunk may
 * lie; max_phys 0 means no bound. With max_phys <= INSULA_LOW_LIMIT the memory
 * comes from the firmware's RAM below 1 MiB, in pages and as one chunk; else in
 * granules. New memory is zero.
 */
struct insula_request {
	__u64 size;		/* multiple of INSULA_GRANULE (of 4096 if low) */
	__u64 min_phys;
	__u64 max_phys;
	__u64 chunk_max;	/* largest chunk to take, 0 for no limit */
	__s32 numa_node;	/* or INSULA_NUMA_ANY */
	__u32 flags;		/* INSULA_REQUEST_* */
};

/*
 * In blocks: each chunk is of exactly chunk_max bytes, a power of two that divides
 * the size, and lies at a multiple of it. Not below 1 MiB.
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

/* INSULA_MEMORY_CHUNKS: where the object's memory lies, in order of offset. */
struct insula_chunks {
	__u64 chunks;		/* in: array of struct insula_chunk to fill, may be 0 */
	__u32 capacity;		/* in: its length */
	__u32 count;		/* out: chunks there are (fills at most capacity) */
};

/*
 * INSULA_MEMORY_COPY: copy bytes of another object into this one. Costs less than
 * copying between two mappings, since no page of either has to be mapped for it.
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
	__u64 description;	/* in: bytes kept for the owner, unread */
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

/*
 * INSULA_DESCRIPTION: on a node's descriptor, or on a memory object's that was
 * had by INSULA_IMAGE_OPEN.
 */
struct insula_description {
	__u64 bytes;		/* in: buffer to fill, may be 0 */
	__u32 capacity;		/* in: its size */
	__u32 size;		/* out: bytes there are (fills at most capacity) */
};

/* INSULA_NODE_CREATE: take cores for a node. Answer: the node's descriptor. */
struct insula_node_create {
	char name[INSULA_NAME_MAX];
	__u64 description;	/* in: bytes kept for the owner, unread */
	__u32 description_size;
	__u32 cpus_count;
	__u64 cpus;		/* in: array of __u32 core numbers; the first boots */
	__s32 memory;		/* in: descriptor of its memory object */
	__u32 flags;		/* 0 */
};

/*
 * INSULA_NODE_START: begin at `entry` in 64-bit mode on the first core, with
 * interrupts off, flat segments (CS 0x10, DS 0x18), `page_table` in CR3 and
 * `argument` in RSI. `page_table` must map the trampoline page (see struct
 * insula_machine) and `entry` one to one. `entry`, `page_table` and the two
 * ending bytes must lie in the node's memory; `argument` is passed on unread.
 */
struct insula_node_start {
	__u64 entry;
	__u64 page_table;
	__u64 argument;
	__u64 power_off;	/* byte that the node makes non-zero when it is off */
	__u64 reset;		/* byte that it makes non-zero when it wants a reset */
};

/* OCI's words. */
enum insula_state {
	INSULA_CREATING = 0,	/* being put together, belongs to a descriptor */
	INSULA_CREATED = 1,	/* cores are being started */
	INSULA_RUNNING = 2,
	INSULA_STOPPED = 3,	/* cores given back or held; memory kept, to be read */
};

/* Why a node is stopped. */
enum insula_reason {
	INSULA_REASON_NONE = 0,		/* it is not */
	INSULA_REASON_POWER_OFF = 1,	/* it switched itself off */
	INSULA_REASON_RESET = 2,	/* it asked for a reset */
	INSULA_REASON_STOPPED = 3,	/* stopped by the user */
	INSULA_REASON_KILLED = 4,	/* killed by the user */
	INSULA_REASON_CRASHED = 5,	/* stopped by a watcher that found it crashed */
	INSULA_REASON_BASE = 6,		/* stopped since the base went down */
	INSULA_REASON_HALTED = 7,	/* stopped by a watcher that found it halted */
	INSULA_REASON_HUNG = 8,		/* the same, found unresponsive */
	INSULA_REASON_DEVICE_LOST = 9,	/* stopped since the base lost a device of its */
};

#define INSULA_NODE_SUPERVISED		(1U << 0)	/* a descriptor supervises it */
#define INSULA_NODE_HELD		(1U << 1)	/* stopped, and its cores kept for it */
#define INSULA_NODE_RETIRED		(1U << 2)	/* its end is, or is to be, for good */
#define INSULA_NODE_UNRESPONSIVE	(1U << 3)	/* it runs and gives no sign */

/* INSULA_NODE_INFO */
struct insula_node_info {
	char name[INSULA_NAME_MAX];
	__u32 id;
	__u32 state;		/* enum insula_state */
	__u32 reason;		/* enum insula_reason */
	__u32 cpus_count;	/* cores that it has or, if stopped, had */
	__u64 cpus;		/* in: array of struct insula_cpu to fill, may be 0 */
	__u32 cpus_capacity;	/* in: its length */
	__u32 flags;		/* INSULA_NODE_* */
	__u64 memory_size;
	__u64 starts;		/* how often it was started */
	__u64 started_ns;	/* CLOCK_BOOTTIME of the last start, 0 if not started */
	__u64 ended_ns;		/* CLOCK_BOOTTIME of the end, 0 if not ended */
	__u64 start_tsc;	/* time stamp counter on entering INSULA_NODE_START */
	__u64 entry_tsc;	/* and on the node's core, just before `entry` */
	__u64 power_off;	/* the last two of struct insula_node_start */
	__u64 reset;
};

/*
 * INSULA_NODE_STOP: stop its cores at once. STOPPED and KILLED retire it; the
 * cores of one that was found CRASHED, HALTED or HUNG, or that lost a device, may be held
 * for its supervisor.
 */
struct insula_node_stop {
	__u32 reason;		/* STOPPED, KILLED, CRASHED, HALTED, HUNG, DEVICE_LOST */
	__u32 reserved;
};

/*
 * INSULA_NODE_SUPERVISE: this descriptor supervises the node until it is closed; the
 * call can be repeated to say something else. When the node ends for one of the
 * reasons in `hold` its cores stay its own, until it is retired or started again, or
 * the descriptor is closed. EBUSY: another descriptor supervises it.
 */
struct insula_node_supervise {
	__u32 hold;		/* 1 << POWER_OFF, RESET, CRASHED, HALTED, HUNG, DEVICE_LOST */
	__u32 flags;		/* INSULA_NODE_UNRESPONSIVE, as long as it is */
};

/* Fail with ECANCELED if the node is retired: the wish is a policy's, no user's. */
#define INSULA_RECREATE_UNLESS_RETIRED	(1U << 0)

/*
 * INSULA_NODE_RECREATE: put a stopped node together anew, under its name and id:
 * it has its cores and devices (taken again if they went back, all or none), its
 * memory is cleared, the description replaced. The node then belongs to the descriptor as a
 * new one does: INSULA_NODE_START starts it, and if the descriptor is closed first
 * it is stopped again, for its old reason. Mappings of its memory and of its channels that
 * were made before show a page without meaning from then on, and change nothing of the
 * node's: who is to see its next life maps it anew.
 */
struct insula_node_recreate {
	__u64 description;	/* in: bytes kept for the owner, unread */
	__u32 description_size;
	__u32 flags;		/* INSULA_RECREATE_* */
};

/*
 * INSULA_NODE_GROW: give more to a node that runs, all or nothing. The cores wait for
 * the node's kernel to start them by INIT and a start-up IPI, as those do that it began
 * with. The object's chunks become the last of the node's, within reach of its devices;
 * the object is left empty. From here on all is the node's, and goes when it goes.
 * EALREADY: it does not run. EOPNOTSUPP: it has programs of its own (insula_lwk.h).
 */
struct insula_node_grow {
	__u64 cpus;		/* in: array of __u32 core numbers */
	__u32 cpus_count;
	__s32 memory;		/* in: descriptor of a memory object that is nobody's, or -1 */
};

/*
 * INSULA_NODE_SHRINK: take back from a node that runs what its kernel has let go of: what
 * it still uses is taken from it all the same. Cores are reset; of the memory only the
 * last chunks go, and none that the node was started with. Not the first core.
 */
struct insula_node_shrink {
	__u64 cpus;		/* in: array of __u32 core numbers, all of the node's */
	__u32 cpus_count;
	__u32 chunks;		/* how many of its last chunks */
};

/*
 * INSULA_NODE_SHARE: let a node that is being put together have memory beside its own that
 * other nodes may have as well, such as a root that all of them read; by the owner of the
 * node's descriptor. The devices that it has by then reach it, too. The object is nobody's,
 * or shared by other nodes; the node has it until it is gone, through all its starts. That
 * it is not to be written is between the nodes' kernels: nothing keeps one from it.
 * EBUSY: the object is an image's or a node's own, or the node has one already.
 */
struct insula_node_share {
	__s32 memory;		/* in: descriptor of the memory object */
	__u32 flags;		/* 0 */
};

/* The vector that stands for a non-maskable interrupt, as on the processor. */
#define INSULA_VECTOR_NMI	2

/*
 * INSULA_NODE_INTERRUPT: send an interrupt to one of its cores. What its kernel
 * makes of the vector is between it and the caller. With INSULA_VECTOR_NMI it is
 * delivered as an NMI: only to a core that the node's kernel has brought online
 * (others have nothing to handle it with, and a direct node's core that cannot
 * handle an exception resets the machine).
 */
struct insula_node_interrupt {
	__u32 index;		/* of the core among the node's, 0 for the first */
	__u32 vector;		/* 32 to 255, or INSULA_VECTOR_NMI */
};

/*
 * INSULA_NODE_CHANNELS: lay out the node's channels, before its start. INSULA_AREA_SIZE
 * (insula_channel.h) bytes from `start` on must lie, cleared, in the node's memory
 * without a gap; the node's ACPI tables should name them.
 */
struct insula_channels {
	__u64 start;		/* a multiple of 4096 */
	__u32 count;		/* 1 to INSULA_CHANNELS_MAX */
	__u32 slots;		/* of each ring: a power of two */
};

/*
 * INSULA_CHANNEL_OPEN: the end on this side of a channel, in a new session. In the base
 * on the node's descriptor: EBUSY while an end of it is open in an old one. In a node on
 * the control descriptor: waits for the base. Answer: a descriptor, and the end is open
 * as long as this is.
 */
struct insula_channel_open {
	__u32 index;		/* in: which of the node's */
	__u32 slots;		/* out: of each ring */
};

/*
 * INSULA_CHANNEL_EVENT: bind an event of the channel to eventfds, on an end's descriptor:
 * `incoming` is written to when the peer signals the event, and the peer sees it signalled
 * when `outgoing` is. Replaces what it was bound to; -1 is none. Until the descriptor is closed.
 */
struct insula_channel_event {
	__u32 event;		/* below INSULA_EVENTS */
	__s32 incoming;
	__s32 outgoing;
	__u32 reserved;
};

/*
 * INSULA_NODE_DELEGATION: lay out the node's delegation area (insula_lwk.h), before its
 * start. Its pages must lie, cleared, in the node's memory without a gap.
 */
struct insula_delegation {
	__u64 start;		/* a multiple of 4096 */
	__u32 pages;		/* INSULA_LWK_PAGES_MIN to INSULA_LWK_PAGES_MAX */
	__u32 reserved;
};

/* Offset of desks in a space's descriptor: no address of a program reaches it. */
#define INSULA_SPACE_DESKS	(1ULL << 47)
/* The signal by which the module breaks a call of a proxy's thread off. */
#define INSULA_SPACE_INTERRUPT	33

/*
 * INSULA_SPACE_CREATE: a space for the calling process, which becomes the program's
 * proxy. Answer: its descriptor. Only this process can map it. EPIPE: the node does not
 * run. EAGAIN: its kernel does not take programs (yet). ENOSPC: no page is left in its
 * delegation area.
 */
struct insula_space_create {
	__u64 start;		/* in: the program's part of the address space */
	__u64 end;		/* in: both multiples of 4096, below INSULA_SPACE_DESKS */
	__u32 desk;		/* out: the first thread's */
	__u32 flags;		/* 0 */
};

/* INSULA_SPACE_BEGIN: have the node run the program, once. The caller sits at its desk. */
struct insula_space_begin {
	__u64 arguments_size;	/* of what INSULA_LWK_ARGUMENTS gives */
	__u64 descriptor;	/* the number of this one */
	__u64 desks;		/* address at which the proxy has mapped INSULA_SPACE_DESKS */
	/* Bit number - 1 for each signal with which the program begins: */
	__u64 ignored;
	__u64 blocked;
};

/*
 * INSULA_SPACE_SIGNAL: the program is to have a signal, which the calling thread of its proxy
 * has taken: the beginning of its siginfo_t.
 */
struct insula_space_signal {
	__s32 signal;
	__s32 error;		/* si_errno */
	__s32 code;		/* si_code */
	__u32 padding;		/* anything */
	__u64 fields[4];	/* what depends on the code */
};

/*
 * INSULA_SPACE_FORK: a space for a copy of the program, whose proxy will be a child of the
 * caller's process. Answer: its descriptor, which does nothing until the child has said
 * INSULA_SPACE_ADOPT: then it is the only process that can map it, and the calling thread
 * sits at the first desk. ENOSPC: as of INSULA_SPACE_CREATE.
 */
struct insula_space_fork {
	__u64 desk;		/* out: the first thread's */
	__u64 process;		/* out: the copy, see insula_lwk.h */
};

/* INSULA_SPACE_RELEASE: what the request INSULA_LWK_RELEASE asks for. */
struct insula_space_range {
	__u64 start;
	__u64 size;
	__u64 ticket;
	__u64 flags;		/* INSULA_LWK_RELEASE_* */
};

/* It cannot reach memory that is not the node's: an IOMMU is in its way. */
#define INSULA_DEVICE_CONFINED	(1U << 0)
/* The node has it; without this flag it went back to the base. */
#define INSULA_DEVICE_HELD	(1U << 1)

/*
 * INSULA_NODE_DEVICE_ADD: take a PCI function from the base for a node that is being
 * put together, by the owner of the node's descriptor, and reset it. It must be
 * alone on its bus and interrupt by messages that nothing remaps. From here on the
 * module has it: when the node ends, whatever ended it, it can reach no memory any
 * more, is reset and goes back to the driver that the base had for it. The node's
 * memory must be complete but for what INSULA_NODE_GROW adds.
 */
struct insula_device {
	__u32 segment;
	__u32 bus;
	__u32 function;		/* device number * 8 + function number */
	__u32 flags;		/* INSULA_DEVICE_*; 0 when adding */
};

/* INSULA_NODE_DEVICES: those that a node has or, if stopped, had. */
struct insula_devices {
	__u64 devices;		/* in: array of struct insula_device to fill, may be 0 */
	__u32 capacity;		/* in: its length */
	__u32 count;		/* out: devices there are (fills at most capacity) */
};

/*
 * INSULA_NODE_LEND: lend memory of the calling process to the node, which runs and whose
 * kernel knows insula_frames.h. Answer: the lender's descriptor; what it has granted is
 * the node's until it is taken back: by INSULA_FRAMES_TAKE, by the base's own memory
 * management as it needs, or by closing the descriptor. A node that does not give back
 * in time is stopped for INSULA_REASON_HUNG.
 */
struct insula_lend {
	__u32 lender;		/* out: its number, by which the node knows it */
	__u32 patience_ms;	/* in: how long the node may take to give back */
};

#define INSULA_LEND_PATIENCE_MIN_MS	10
#define INSULA_LEND_PATIENCE_MAX_MS	10000

/*
 * INSULA_FRAMES_GRANT: the one call by which a node gets to use memory that is not its
 * own. What lies in the range, of whatever kind, is brought into memory if need be, and
 * is the node's to use. Answer: where it is. May be repeated: what was taken back in the
 * meantime is granted again.
 */
struct insula_frames_grant {
	__u64 address;		/* in the lender's process; a multiple of 4096, as size */
	__u64 size;
	__u64 pages;		/* in: array of __u64 physical addresses to fill, may be 0 */
	__u32 capacity;		/* in: its length */
	__u32 flags;		/* INSULA_FRAMES_WRITABLE: the node may write it */
};

/* INSULA_FRAMES_TAKE: when this returns the node does not use the range any more. */
struct insula_frames_take {
	__u64 address;
	__u64 size;
};

/*
 * INSULA_BORROW: in a node, a descriptor of what a lender grants to it. mmap() at the
 * offset that is the lender's address of it; what has not been granted, or was taken
 * back, faults with SIGBUS.
 */
struct insula_borrow {
	__u32 lender;
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
/* As INSULA_IMAGE_ADD, in the place of the image that has the name, if one has. */
#define INSULA_IMAGE_REPLACE	_IOW(INSULA_IOC, 0x24, struct insula_image)
#define INSULA_NODE_CREATE	_IOW(INSULA_IOC, 0x30, struct insula_node_create)
#define INSULA_NODE_OPEN	_IOW(INSULA_IOC, 0x31, struct insula_name)
#define INSULA_NODE_LIST	_IOWR(INSULA_IOC, 0x32, struct insula_names)

/* memory */
#define INSULA_MEMORY_GROW	_IOW(INSULA_IOC, 0x11, struct insula_request)
#define INSULA_MEMORY_CHUNKS	_IOWR(INSULA_IOC, 0x12, struct insula_chunks)
#define INSULA_MEMORY_COPY	_IOW(INSULA_IOC, 0x13, struct insula_copy)
/*
 * Take the object from all processes, for good: mappings of it fault with SIGBUS, or
 * EFAULT where the kernel was to do I/O; calls on its descriptors fail with ENODEV. Its
 * memory goes back when no image and no node has it any more.
 */
#define INSULA_MEMORY_REVOKE	_IO(INSULA_IOC, 0x14)

/* node */
#define INSULA_NODE_START	_IOW(INSULA_IOC, 0x33, struct insula_node_start)
#define INSULA_NODE_STOP	_IOW(INSULA_IOC, 0x34, struct insula_node_stop)
#define INSULA_NODE_INFO	_IOWR(INSULA_IOC, 0x35, struct insula_node_info)
#define INSULA_NODE_REMOVE	_IO(INSULA_IOC, 0x36)	/* not while it runs: EBUSY */
#define INSULA_NODE_MEMORY	_IO(INSULA_IOC, 0x37)	/* answer: its memory object */
#define INSULA_NODE_INTERRUPT	_IOW(INSULA_IOC, 0x38, struct insula_node_interrupt)
#define INSULA_NODE_SUPERVISE	_IOW(INSULA_IOC, 0x39, struct insula_node_supervise)
#define INSULA_NODE_RETIRE	_IO(INSULA_IOC, 0x3a)	/* its next end is for good */
#define INSULA_NODE_RECREATE	_IOW(INSULA_IOC, 0x3b, struct insula_node_recreate)
#define INSULA_NODE_GROW	_IOW(INSULA_IOC, 0x3c, struct insula_node_grow)
#define INSULA_NODE_SHRINK	_IOW(INSULA_IOC, 0x3d, struct insula_node_shrink)
#define INSULA_NODE_SHARE	_IOW(INSULA_IOC, 0x3e, struct insula_node_share)
#define INSULA_NODE_SHARED	_IO(INSULA_IOC, 0x3f)	/* answer: that object; ENODATA: none */
#define INSULA_NODE_DEVICE_ADD	_IOW(INSULA_IOC, 0x60, struct insula_device)
#define INSULA_NODE_DEVICES	_IOWR(INSULA_IOC, 0x61, struct insula_devices)

#define INSULA_NODE_CHANNELS	_IOW(INSULA_IOC, 0x50, struct insula_channels)

/* node in the base, control in a node */
#define INSULA_CHANNEL_OPEN	_IOWR(INSULA_IOC, 0x51, struct insula_channel_open)

#define INSULA_NODE_LEND	_IOWR(INSULA_IOC, 0x90, struct insula_lend)

/* lender */
#define INSULA_FRAMES_GRANT	_IOW(INSULA_IOC, 0x91, struct insula_frames_grant)
#define INSULA_FRAMES_TAKE	_IOW(INSULA_IOC, 0x92, struct insula_frames_take)

/* control in a node */
#define INSULA_BORROW		_IOW(INSULA_IOC, 0x93, struct insula_borrow)

/* channel */
#define INSULA_CHANNEL_RING	_IO(INSULA_IOC, 0x52)	/* EPIPE: the peer has gone */
#define INSULA_CHANNEL_EVENT	_IOW(INSULA_IOC, 0x53, struct insula_channel_event)

#define INSULA_NODE_DELEGATION	_IOW(INSULA_IOC, 0x70, struct insula_delegation)
#define INSULA_SPACE_CREATE	_IOWR(INSULA_IOC, 0x71, struct insula_space_create)

/* space */
#define INSULA_SPACE_BEGIN	_IOW(INSULA_IOC, 0x72, struct insula_space_begin)
#define INSULA_SPACE_DESK	_IO(INSULA_IOC, 0x73)	/* answer: a free desk, taken */
/* The rest by threads of the proxy, their argument itself being a desk: */
#define INSULA_SPACE_SIT	_IO(INSULA_IOC, 0x74)	/* the calling thread's is this one */
#define INSULA_SPACE_LEAVE	_IO(INSULA_IOC, 0x75)	/* it is free again */
#define INSULA_SPACE_WAIT	_IO(INSULA_IOC, 0x76)	/* for a turn. EPIPE: the node ended */
#define INSULA_SPACE_RING	_IO(INSULA_IOC, 0x77)	/* the LWK's thread that sleeps there */
#define INSULA_SPACE_SIGNAL	_IOW(INSULA_IOC, 0x78, struct insula_space_signal)
#define INSULA_SPACE_RELEASE	_IOW(INSULA_IOC, 0x79, struct insula_space_range)
#define INSULA_SPACE_FORK	_IOR(INSULA_IOC, 0x7a, struct insula_space_fork)
#define INSULA_SPACE_ADOPT	_IO(INSULA_IOC, 0x7b)	/* EBUSY: another process has */

/* memory of an image, node */
#define INSULA_DESCRIPTION	_IOWR(INSULA_IOC, 0x40, struct insula_description)

#endif
