/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_MEMORY_H
#define INSULA_MEMORY_H

#include <linux/fs.h>

#include "description.h"
#include "insula_module.h"
#include "take.h"

/*
 * A memory object is its open file: whoever needs the object holds a reference
 * to the file, and with the last of them its memory goes back.
 */

/* INSULA_MEMORY_CREATE: a descriptor of an empty object, or an error. */
int insula_memory_create(void);

/* The object's file behind a descriptor, referenced; ERR_PTR(-EBADF) if it is none. */
struct file *insula_memory_get(int fd);

/* A descriptor for the calling process of an object. */
int insula_memory_install(struct file *file);

/*
 * Make an object an image's or a node's own, for good: -EBUSY if it is somebody's
 * already. Unclaim only if what it was claimed for did not come to be.
 */
int insula_memory_claim(struct file *file);
void insula_memory_unclaim(struct file *file);

/* Describe an object that the caller has claimed. The description becomes its. */
void insula_memory_describe(struct file *file, struct insula_description_data *description);

/* Clear all of an object, which nobody may be executing from. Sleeps. */
void insula_memory_clear(struct file *file);

/*
 * Move all chunks of `from`, which the caller has claimed, behind those of `into`.
 * -ENOMEM: nothing has changed.
 */
int insula_memory_absorb(struct file *into, struct file *from);

/* Clear the last `count` chunks of an object and give them back. Sleeps. */
void insula_memory_drop(struct file *file, u32 count);

/* Chunks, and bytes, that an object has. */
u32 insula_memory_count(struct file *file);
u64 insula_memory_size(struct file *file);

/* Whether [start, start + size) lies inside one chunk of the object. */
bool insula_memory_covers(struct file *file, u64 start, u64 size);

/* Where chunk number `index` of the object lies; false if there are not so many. */
bool insula_memory_chunk(struct file *file, u32 index, struct insula_extent *extent);

/* Memory of all objects that is not the pool's, in bytes. */
u64 insula_memory_taken(void);

#endif
