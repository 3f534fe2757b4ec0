/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * insula_mirror.h - mm mirrors of programs on lightweight kernels, for their proxies: part of the
 * interface described in insula.h
 */
#ifndef INSULA_MIRROR_H
#define INSULA_MIRROR_H

#include "insula.h"

/* Offset of slots in a mirror's descriptor: above all addresses of programs. */
#define INSULA_MIRROR_SLOTS	(1ULL << 47)
/* Size of all slots that an area can have. */
#define INSULA_MIRROR_SLOTS_SIZE	(1ULL << 26)
/*
 * The same slots as exiting threads find them: access waits until the program has stopped, and is
 * denied to others. To be mapped behind the slots.
 */
#define INSULA_MIRROR_EXIT_SLOTS	(INSULA_MIRROR_SLOTS + INSULA_MIRROR_SLOTS_SIZE)
/* Signal by which the module cancels a call of a proxy's thread. */
#define INSULA_MIRROR_CANCEL_SIGNAL	33

/*
 * INSULA_MIRROR_CREATE: create an mm mirror for the calling process, which becomes the
 * program's proxy. Returns a descriptor that only this process can map. EPIPE: the node is not
 * running. EAGAIN: its kernel does not accept programs (yet). ENOSPC: no page is left in its
 * delegation area. With INSULA_MIRROR_CREATE_FOR_OTHER the proxy will be the process that calls
 * INSULA_MIRROR_ADOPT on the descriptor: until then it is unusable.
 */
#define INSULA_MIRROR_CREATE_FOR_OTHER	1

struct insula_mirror_create {
	__u64 start;		/* in: the program's part of the address space */
	__u64 end;		/* in: both multiples of 4096, below INSULA_MIRROR_SLOTS */
	__u32 slot;		/* out: the first thread's */
	__u32 flags;		/* INSULA_MIRROR_CREATE_FOR_OTHER */
};

/*
 * INSULA_MIRROR_START: start the program, or let a running one go on, once. The caller is attached
 * to its slot.
 */
struct insula_mirror_start {
	__u64 arguments_size;	/* of what INSULA_LWK_ARGUMENTS copies */
	__u64 descriptor;	/* number of this descriptor */
	__u64 slots;		/* address at which the proxy has mapped INSULA_MIRROR_SLOTS */
	/* Bit number - 1 for each signal ignored, or blocked, at start: */
	__u64 ignored;
	__u64 blocked;
	__u64 running;		/* as in struct insula_lwk_process */
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

/*
 * INSULA_MIRROR_MAP: map the mirror over [start, end) of the program's part of the proxy, in
 * place of the base mappings there; with INSULA_MIRROR_MAP_KEEP only where nothing is mapped.
 */
#define INSULA_MIRROR_MAP_KEEP	1

struct insula_mirror_map {
	__u64 start;
	__u64 end;		/* both multiples of 4096, in the mirror's range */
	__u64 flags;		/* INSULA_MIRROR_MAP_KEEP */
};

/* INSULA_MIRROR_FAULT_IN: execute the request INSULA_LWK_FAULT_IN. */
struct insula_mirror_fault_in {
	__u64 address;
	__u64 access;		/* INSULA_LWK_ACCESS_* */
	__u64 owner;		/* a process, see insula_lwk.h */
};

/*
 * INSULA_MIRROR_LEAVE: have the program wait, and its kernel write its state (insula_running.h) to
 * memory of the program; with INSULA_MIRROR_LEAVE_CANCEL have it go on. EOPNOTSUPP: it cannot
 * leave. ETIMEDOUT: a thread of it does not stop. EBUSY: it is about to leave already.
 */
#define INSULA_MIRROR_LEAVE_CANCEL	1

struct insula_mirror_leave {
	__u64 address;		/* out */
	__u64 size;		/* out, in bytes */
	__u64 flags;		/* INSULA_MIRROR_LEAVE_CANCEL */
};

/* node */
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
/*
 * Become the proxy of a mirror that was created for another process, attaching the calling thread
 * to the first slot. EBUSY: another process has.
 */
#define INSULA_MIRROR_ADOPT	_IO(INSULA_IOC, 0x7b)
#define INSULA_MIRROR_MAP	_IOW(INSULA_IOC, 0x7c, struct insula_mirror_map)
/* Called by any process: */
#define INSULA_MIRROR_LEAVE	_IOWR(INSULA_IOC, 0x7f, struct insula_mirror_leave)
/* Called by the proxy again: */
#define INSULA_MIRROR_FAULT_IN	_IOW(INSULA_IOC, 0x7d, struct insula_mirror_fault_in)
/* As execve(2) does, but for the mirror itself: */
#define INSULA_MIRROR_CLOSE_ON_EXEC	_IO(INSULA_IOC, 0x7e)

#endif
