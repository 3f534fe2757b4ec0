/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_OBJECT_H
#define INSULA_OBJECT_H

#include <linux/atomic.h>
#include <linux/fs.h>
#include <linux/mutex.h>
#include <linux/rwsem.h>
#include <linux/xarray.h>

#include "mem/chunk_list.h"
#include "node/description.h"

struct insula_shown_watch;

/* A memory object, for its implementation only: files of this folder. */
struct insula_memory {
	struct mutex growing;		/* one INSULA_MEMORY_GROW at a time */
	struct inode *inode;		/* its file's, for its size */
	struct rw_semaphore mapping;	/* read: map or copy pages; write: change the chunks */
	unsigned long generation;	/* of its content: older mappings show the scratch page */
	struct page *scratch;		/* NULL until there is an older generation */
	struct insula_chunk_list chunks;
	atomic_t claims;		/* of an image or a node, or the number of sharing nodes */
	struct insula_description_data *description;

	/* Of an object that shows another one (shown.c): */
	struct file *source;		/* the other one; NULL: all is its own */
	struct xarray own;		/* pages of its own, by their number */
	unsigned long own_count;
	struct insula_shown_watch *watch;	/* or NULL; locked as `mapping` */

	/* Of an object that others show (working_set.c): */
	struct xarray working_set;	/* page numbers */
	atomic_t working_set_known;
};

/* Create an empty object. ERR_PTR(-ENOMEM). */
struct file *insula_memory_new(void);

/* mmap() of an object. */
int insula_memory_mmap(struct file *file, struct vm_area_struct *vma);

/*
 * Unmap all pages; from then on existing mappings show the scratch page. -ENOMEM. Locked for
 * mapping.
 */
int insula_memory_begin_generation(struct insula_memory *memory, struct address_space *mapping);

/* INSULA_MEMORY_COPY to an object, with its argument in user space. */
int insula_memory_copy(struct insula_memory *target, void __user *argument);

#endif
