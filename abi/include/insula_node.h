/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * insula_node.h - nodes, their devices, channels and grants: part of the interface described in
 * insula.h
 */
#ifndef INSULA_NODE_H
#define INSULA_NODE_H

#include "insula.h"

/* Most cores in one node. */
#define INSULA_NODE_CPUS_MAX	256

/*
 * INSULA_NODE_CREATE: take cores for a node. Answer: the node's descriptor. With a core_share the
 * node's one core stays the base's, too, and online there: its kernel, a lightweight one, is
 * entered as `share_by` says and goes first (insula_shared_core.h). EOPNOTSUPP: the base uses its
 * processors in a way that such a kernel cannot share; the base's log says which. EBUSY: 16 cores
 * are shared already. By VMM the core stays another node's instead, which is confined and runs
 * (insula_monitor.h); ENODEV: no such node has it.
 */
#define INSULA_SHARE_BY_INTERRUPT	0
#define INSULA_SHARE_BY_NMI		1	/* also while the base has interrupts off */
#define INSULA_SHARE_BY_VMM		2	/* by the monitor of the node that has the core */

struct insula_node_create {
	char name[INSULA_NAME_MAX];
	__u64 description;	/* in: bytes kept for the owner, opaque */
	__u32 description_size;
	__u32 cpus_count;
	__u64 cpus;		/* in: array of __u32 core numbers; the first boots */
	__s32 memory;		/* in: descriptor of its memory object */
	__u16 core_share;	/* 0, or most of its shared core's time that it gets: 1 to 99 % */
	__u16 share_by;		/* with a core_share: INSULA_SHARE_BY_*; else 0 */
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
	INSULA_REASON_VIOLATION = 10,	/* confined, and used what is not its own */
	INSULA_REASON_FINDING = 11,	/* its watcher found a fault; stopped by its supervisor */
};

#define INSULA_NODE_SUPERVISED		(1U << 0)	/* a descriptor supervises it */
#define INSULA_NODE_CPUS_KEPT		(1U << 1)	/* stopped, and its cores kept for it */
#define INSULA_NODE_RETIRED		(1U << 2)	/* its (next) end is final: no restart */
#define INSULA_NODE_UNRESPONSIVE	(1U << 3)	/* running, but fails its health probe */
#define INSULA_NODE_CONFINED		(1U << 4)	/* by a monitor */
#define INSULA_NODE_PAUSED		(1U << 5)	/* running, but its cores are paused */

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
	__u64 monitor;		/* physical address of struct insula_monitor; 0: not confined */
};

/*
 * INSULA_NODE_STOP: stop its cores at once. STOPPED and KILLED retire the node; for the other
 * reasons its cores may be kept for its next start.
 */
struct insula_node_stop {
	__u32 reason;		/* STOPPED, KILLED, CRASHED, HALTED, HUNG, DEVICE_LOST, FINDING */
	__u32 reserved;
};

/*
 * INSULA_NODE_SUPERVISE: this descriptor supervises the node until it is closed; repeating the
 * call replaces its arguments. When the node stops for one of the reasons in `keep_cpus`, it
 * keeps its cores until it is retired or started again, or the descriptor is closed. EBUSY:
 * another descriptor supervises it.
 */
struct insula_node_supervise {
	__u32 keep_cpus;	/* 1 << reason, of those after which it may be restarted */
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

/*
 * INSULA_NODE_CONFINE: attach a monitor to a node that is being assembled, by the descriptor that
 * owns the node: its start then enters the monitor (insula_monitor.h). The node keeps the object,
 * which must be unclaimed and have one chunk, through all its starts; it is written anew before
 * each. May be repeated before each start, with the same object; it comes before the areas of
 * INSULA_NODE_CHANNELS and INSULA_NODE_DELEGATION are laid out for that start. EBUSY: another
 * object is attached. EINVAL: the header does not fit the node, or one of its cores has no area.
 * EOPNOTSUPP: the processors have no virtualization that the monitor knows, or no x2APIC.
 */
struct insula_node_confine {
	__s32 memory;		/* in: descriptor of the monitor's memory */
	__u32 flags;		/* 0 */
	__u64 header;		/* offset of struct insula_monitor */
	__u64 entry;		/* of the monitor, in its page table */
	__u64 page_table;	/* of the monitor: physical, maps the trampoline page one to one */
	__u64 argument;		/* RSI of core number i: argument + i * INSULA_MONITOR_CORE_SIZE */
};

/*
 * INSULA_NODE_EXCHANGE_NAMES: the node gets the name of another, which gets that of this one, in
 * one step. Both keep all else: id, description, descriptors. ENOENT: no node has that name.
 *
 * INSULA_NODE_RENAME: the node gets this name, and keeps all else. EEXIST: another node has it.
 */

/*
 * INSULA_NODE_PAUSE: have the monitor of a confined, running node execute its kernel no more, until
 * INSULA_NODE_RESUME or the node's end. On return all of its cores are paused, and their registers
 * are in their areas (insula_monitor.h). Interrupts to them are delivered when they are resumed.
 * Neither has an effect if it is so already. EALREADY: it is not running. EOPNOTSUPP: it is not
 * confined. EBUSY: it has memory of the base, by grants or delegation, which the base takes back in
 * time only with the help of the node's kernel. ETIMEDOUT: a core did not answer, and nothing is
 * changed.
 */

/* The processor's exception vector of NMIs. */
#define INSULA_VECTOR_NMI	2

/*
 * INSULA_NODE_INTERRUPT: send an interrupt to one of the node's cores. With INSULA_VECTOR_NMI
 * it is delivered as an NMI: send one only to a core that the node's kernel has brought
 * online (another has no handler, and a core that cannot handle an exception resets the whole
 * machine). EOPNOTSUPP: an NMI to a core that the base shares.
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

/* An IOMMU domain restricts its DMA to the node's memory. */
#define INSULA_DEVICE_IOMMU	(1U << 0)
/* The node has it; without this flag it was returned to the base. */
#define INSULA_DEVICE_ATTACHED	(1U << 1)
/*
 * The base gets its interrupts and sends them on: for a confined node, which must not program them.
 * Needs an IOMMU that restricts its DMA and remaps interrupts, since without remapping a device
 * can interrupt any core, by DMA, too; and MSI-X.
 */
#define INSULA_DEVICE_RELAYED	(1U << 2)

/*
 * INSULA_NODE_DEVICE_ADD: take a PCI function from the base for a node that is being
 * assembled, by the descriptor that owns the node, and reset it. It must be alone on its bus
 * and use message-signalled interrupts without remapping, or relayed ones. When the node ends
 * for any reason, the function's DMA is disabled, it is reset and returned to the driver that
 * the base had for it. The node's memory must be complete except for what INSULA_NODE_GROW adds.
 */
struct insula_device {
	__u32 segment;
	__u32 bus;
	__u32 function;		/* device number * 8 + function number */
	__u32 flags;		/* INSULA_DEVICE_*; when adding, at most RELAYED */
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
 * time is stopped with INSULA_REASON_HUNG. EBUSY: the node is paused.
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

/* control */
#define INSULA_NODE_CREATE	_IOW(INSULA_IOC, 0x30, struct insula_node_create)
#define INSULA_NODE_OPEN	_IOW(INSULA_IOC, 0x31, struct insula_name)
#define INSULA_NODE_LIST	_IOWR(INSULA_IOC, 0x32, struct insula_names)

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
#define INSULA_NODE_CONFINE	_IOW(INSULA_IOC, 0xa0, struct insula_node_confine)
#define INSULA_NODE_MONITOR	_IO(INSULA_IOC, 0xa1)	/* the monitor's memory; ENODATA: none */
#define INSULA_NODE_PAUSE	_IO(INSULA_IOC, 0xa2)
#define INSULA_NODE_RESUME	_IO(INSULA_IOC, 0xa3)
#define INSULA_NODE_EXCHANGE_NAMES	_IOW(INSULA_IOC, 0xa4, struct insula_name)
#define INSULA_NODE_RENAME	_IOW(INSULA_IOC, 0xa5, struct insula_name)
#define INSULA_NODE_DEVICE_ADD	_IOW(INSULA_IOC, 0x60, struct insula_device)
#define INSULA_NODE_DEVICES	_IOWR(INSULA_IOC, 0x61, struct insula_devices)
#define INSULA_NODE_CHANNELS	_IOW(INSULA_IOC, 0x50, struct insula_channels)
#define INSULA_NODE_DELEGATION	_IOW(INSULA_IOC, 0x70, struct insula_delegation)
#define INSULA_NODE_GRANT_TABLE	_IOWR(INSULA_IOC, 0x90, struct insula_grant_table)

/* node in the base, control in a node */
#define INSULA_CHANNEL_OPEN	_IOWR(INSULA_IOC, 0x51, struct insula_channel_open)

/* grant table */
#define INSULA_GRANT_ADD	_IOW(INSULA_IOC, 0x91, struct insula_grant_add)
#define INSULA_GRANT_REVOKE	_IOW(INSULA_IOC, 0x92, struct insula_grant_revoke)

/* control in a node */
#define INSULA_GRANT_IMPORT	_IOW(INSULA_IOC, 0x93, struct insula_grant_import)

/* channel */
#define INSULA_CHANNEL_RING	_IO(INSULA_IOC, 0x52)	/* EPIPE: the peer disconnected */
#define INSULA_CHANNEL_EVENTFD	_IOW(INSULA_IOC, 0x53, struct insula_channel_eventfd)

#endif
