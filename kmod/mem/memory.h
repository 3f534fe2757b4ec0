/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_MEMORY_H
#define INSULA_MEMORY_H

#include <linux/fs.h>

#include "insula_module.h"
#include "mem/contig_alloc.h"
#include "node/description.h"

/*
 * A memory object is represented by its open file: with the last reference to the file its
 * memory is returned.
 */

/* INSULA_MEMORY_CREATE: returns a descriptor of an empty object, or an error. */
int insula_memory_create(void);

/* Get the object of a descriptor, to be put by fput(). ERR_PTR(-EBADF): not an object. */
struct file *insula_memory_get_any(int fd);

/*
 * The same of one whose chunks are memory. -EOPNOTSUPP: it shows another one (shown.c), and its
 * chunks are only addresses, which its maker has chosen.
 */
struct file *insula_memory_get(int fd);

/* Install a descriptor of an object for the calling process. */
int insula_memory_install(struct file *file);

/*
 * Claim an object for an image or a node, for good: -EBUSY if it is claimed or shared. Unclaim
 * it only if the creation of the image or node fails.
 */
int insula_memory_claim(struct file *file);
void insula_memory_unclaim(struct file *file);

/*
 * Share an object, once for each node: -EBUSY if it is claimed. It can be claimed again when all
 * nodes have unshared it.
 */
int insula_memory_share(struct file *file);
void insula_memory_unshare(struct file *file);

/* Set the description of an object claimed by the caller, taking over the reference. */
void insula_memory_describe(struct file *file, struct insula_description_data *description);

/*
 * Clear an object that no core executes. Existing mappings show a scratch page from then on; new
 * ones show the object. -EBUSY: a page stays pinned by I/O. -ENOMEM. Sleeps.
 */
int insula_memory_clear(struct file *file);

/* Append all chunks of `from`, claimed by the caller, to `into`. -ENOMEM: nothing changed. */
int insula_memory_absorb(struct file *into, struct file *from);

/* Clear and return the last `count` chunks of an object. Sleeps. */
void insula_memory_drop(struct file *file, u32 count);

/* Number of chunks, and of bytes, of an object. */
u32 insula_memory_count(struct file *file);
u64 insula_memory_size(struct file *file);

/* Whether [start, start + size) belongs to the object: in one or several adjacent chunks. */
bool insula_memory_covers(struct file *file, u64 start, u64 size);

/*
 * Where the base has [start, start + size) of the object mapped, for good. Of one that shows
 * another it has to be within a page, which becomes its own. ERR_PTR(-EINVAL): it is not the
 * object's; -ENOMEM. Sleeps.
 */
void *insula_memory_address(struct file *file, phys_addr_t start, u64 size);

/* Extent of chunk number `index` of the object; false if there is none. */
bool insula_memory_chunk(struct file *file, u32 index, struct insula_extent *extent);

/*
 * Pages from a physical address on, prepared for mapping: at most `count`, and only up to the end
 * of the chunk of the object that has the address. Returns their number, 0 if there is none.
 */
u32 insula_memory_pages(struct file *file, phys_addr_t start, u32 count, struct page **pages);

#endif
