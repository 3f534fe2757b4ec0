/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_SPACE_H
#define INSULA_SPACE_H

#include <linux/atomic.h>
#include <linux/mutex.h>
#include <linux/rwsem.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "desks.h"
#include "program_pages.h"

/* The address space of a program. */
struct insula_space {
	struct insula_desks *desks;
	u32 process;
	struct insula_desks_user user;
	u64 start, end;
	struct mm_struct *mm;		/* the proxy's, to be compared with; NULL: none yet */
	struct rw_semaphore walking;
	struct address_space *mapping;	/* the descriptor's, as long as there is one */
	struct insula_program_pages pages;
	struct mutex releasing;		/* pages, but for adding */
	struct mutex release;		/* one at a time; taken before the former */
	u64 pinned[INSULA_LWK_PINNED_MAX];	/* of a release; under `release` */
	struct xarray seats;		/* by the thread's id, of those that sit */
	atomic_t begun;
	struct mutex stopping;		/* stopped, and its word in the area */
	bool stopped;			/* what the node's kernel has been told */
	struct insula_seat *first;	/* the desk of the first thread */
	struct delayed_work let_go;
};

int insula_spaces_init(void);
void insula_spaces_exit(void);

/* INSULA_SPACE_CREATE, its argument in user space: answers a descriptor. */
int insula_space_create(struct insula_desks *desks, void __user *argument);

/* mmap() of its descriptor: the program's pages, or desks. */
int insula_space_mmap(struct file *file, struct vm_area_struct *vma);

#endif
