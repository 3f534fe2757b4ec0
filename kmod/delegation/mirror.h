/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_MIRRORS_H
#define INSULA_MIRRORS_H

#include <linux/atomic.h>
#include <linux/mutex.h>
#include <linux/refcount.h>
#include <linux/rwsem.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "delegation/base_mapping.h"
#include "delegation/frame_tracker.h"
#include "delegation/process_fault.h"
#include "delegation/slots.h"

/* mm mirror: the address space of a node's program, for its proxy. */
struct insula_mirror {
	struct insula_slots *slots;
	u32 process;
	struct insula_slots_user user;
	u64 start, end;
	refcount_t users;		/* the descriptor, and faults for sharers; 0: none yet */
	struct mm_struct *mm;		/* the proxy's, not its users; NULL: none yet */
	struct rw_semaphore walk_lock;	/* read: faults walk and map; write: unmap */
	struct address_space *mapping;	/* the descriptor's; NULL once it is closed */
	struct insula_frame_tracker tracker;
	struct mutex tracker_lock;	/* tracker, except for adding */
	struct mutex invalidate_lock;	/* one invalidation at a time; outside tracker_lock */
	u64 pinned[INSULA_LWK_PINNED_MAX];	/* of an invalidation; invalidate_lock */
	struct xarray attached;		/* slots by the attached thread's id */
	atomic_t started;
	atomic_t leaving;		/* 1: one process has the program wait to leave */
	struct mutex stopped_lock;	/* stopped, and its word in the area */
	bool stopped;			/* as reported to the node's kernel */
	struct insula_syscall_slot *first;	/* the first thread's */
	struct insula_process_faults faults;
	struct insula_base_mappings base;
	int joined_vmas;		/* VMAs of the proxy when those of the mirror were joined */
	struct delayed_work quiesce_work;
};

int insula_mirrors_init(void);
void insula_mirrors_exit(void);

/* INSULA_MIRROR_CREATE with its argument in user space: returns a descriptor. */
int insula_mirror_create(struct insula_slots *slots, void __user *argument);

/* The mirror of a user of its slots. */
static inline struct insula_mirror *insula_mirror_of(struct insula_slots_user *user)
{
	return container_of(user, struct insula_mirror, user);
}

/* Keep a mirror that is among its slots' users. False: it is about to end. */
static inline bool insula_mirror_get(struct insula_mirror *mirror)
{
	return refcount_inc_not_zero(&mirror->users);
}

void insula_mirror_put(struct insula_mirror *mirror);

/*
 * Report a change of the proxy's stop state to the program's kernel: the proxy cannot catch
 * SIGSTOP, and the program's threads would run on. Called by a thread of the proxy.
 */
void insula_mirror_report_stopped(struct insula_mirror *mirror);

/* INSULA_MIRROR_SIGNAL with its argument in user space. */
int insula_mirror_signal(struct insula_mirror *mirror, void __user *argument);

/* INSULA_MIRROR_LEAVE with its argument in user space. */
int insula_mirror_leave(struct insula_mirror *mirror, void __user *argument);

/* INSULA_MIRROR_INVALIDATE with its argument in user space. */
int insula_mirror_invalidate(struct insula_mirror *mirror, void __user *argument);

/* Whether a VMA maps a mirror. */
bool insula_mirror_is_vma(const struct vm_area_struct *vma);

/* INSULA_MIRROR_MAP with its argument in user space; `file` is the mirror's. */
int insula_mirror_map(struct file *file, void __user *argument);

/* INSULA_MIRROR_CLOSE_ON_EXEC; `file` is the mirror's, which stays open. */
int insula_mirror_close_on_exec(struct file *file);

/* mmap() of its descriptor: the program's pages, or syscall slots. */
int insula_mirror_mmap(struct file *file, struct vm_area_struct *vma);
int insula_mirror_mmap_slots(struct vm_area_struct *vma);

#endif
