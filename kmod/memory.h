/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_MEMORY_H
#define INSULA_MEMORY_H

#include <linux/fs.h>

#include "description.h"
#include "insula_module.h"
#include "take.h"

/*
 * A memory object is its open file: whoever needs the object holds it by a reference to
 * the file, and with the last of them its memory goes back. Once it is revoked, it goes
 * back with the last that was had by insula_memory_get() and insula_memory_hold():
 * only these, and calls on its descriptors, may touch the memory.
 */

/* INSULA_MEMORY_CREATE: a descriptor of an empty object, or an error. */
int insula_memory_create(void);

/*
 * The object's file behind a descriptor, held: ERR_PTR(-EBADF) if it is none,
 * ERR_PTR(-ENODEV) if it was revoked.
 */
struct file *insula_memory_get(int fd);

/* Hold it once more, for a holder of it; let go of it. */
struct file *insula_memory_hold(struct file *file);
void insula_memory_put(struct file *file);

/* A descriptor for the calling process of an object. */
int insula_memory_install(struct file *file);

/*
 * Make an object an image's or a node's own, for good: -EBUSY if it is somebody's
 * already. Unclaim only if what it was claimed for did not come to be.
 */
int insula_memory_claim(struct file *file);
void insula_memory_unclaim(struct file *file);

/*
 * Make an object one of several nodes', one more of them: -EBUSY if it is somebody's own.
 * It is anybody's again when each has unshared it.
 */
int insula_memory_share(struct file *file);
void insula_memory_unshare(struct file *file);

/* Describe an object that the caller has claimed. The description becomes its. */
void insula_memory_describe(struct file *file, struct insula_description_data *description);

/*
 * Take an object from all processes and clear it; nobody may be executing from it. Mappings
 * that there are show a page without meaning from then on: what is to come is seen by those
 * that are made later. -EBUSY: somebody does I/O on it and does not end. -ENOMEM. Sleeps.
 */
int insula_memory_clear(struct file *file);

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

/* Whether [start, start + size) is the object's: in one chunk, or in some that touch. */
bool insula_memory_covers(struct file *file, u64 start, u64 size);

/* Where chunk number `index` of the object lies; false if there are not so many. */
bool insula_memory_chunk(struct file *file, u32 index, struct insula_extent *extent);

/*
 * Pages from a physical address on, as processes can map them: so many of `count` as lie
 * there in one chunk of the object, 0 if none. They are the object's as long as it is held.
 */
u32 insula_memory_pages(struct file *file, phys_addr_t start, u32 count, struct page **pages);

#endif
