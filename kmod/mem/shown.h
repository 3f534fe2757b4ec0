/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_SHOWN_H
#define INSULA_SHOWN_H

#include <linux/fs.h>

#include "insula_module.h"

struct insula_memory;
struct page;

/*
 * Objects that show the content of another one, an image's, until they are written: memory of a
 * copy of a confined node. Their addresses are the copy's, their frames are elsewhere.
 */

/* Told of each page that becomes an object's own, before anybody can write it. */
struct insula_shown_watch {
	int (*owned)(struct insula_shown_watch *watch, u64 address, phys_addr_t frame);
};

/* INSULA_MEMORY_SHOW. Returns a descriptor, or an error. */
int insula_memory_show(void __user *argument);

/* Whether it is such an object. */
bool insula_memory_is_shown(struct file *file);

/* Set the watch of such an object, or NULL. -EBUSY: it has one. Sleeps. */
int insula_shown_set_watch(struct file *file, struct insula_shown_watch *watch);

/*
 * Make the page at an address the object's own, if it is not. -EINVAL: the address is not the
 * object's. -ENOMEM; or an error of the watch. Sleeps.
 */
int insula_shown_own(struct file *file, u64 address);

/*
 * Make the page of a range own, which must be within one. Returns where the range is mapped for
 * good. ERR_PTR as of insula_shown_own().
 */
void *insula_shown_own_address(struct file *file, u64 address, u64 size);

/*
 * Make `count` pages own, in one chunk, and map them one after the other, until vunmap(). ERR_PTR,
 * the same.
 */
void *insula_shown_map(struct file *file, u64 address, u32 count);

/* Bytes of their own, of all such objects. */
u64 insula_shown_allocated(void);

/*
 * The rest is for the implementation of objects. The page at an offset, and whether it is the
 * object's own. NULL: beyond its end. Locked for mapping.
 */
struct page *insula_shown_page(struct insula_memory *memory, u64 offset);

/* The same, made its own. ERR_PTR. Locked for mapping, to write. */
struct page *insula_shown_own_page(struct insula_memory *memory, u64 offset);

/* Bytes of its own. */
u64 insula_shown_own_size(const struct insula_memory *memory);

/* Return all. It is mapped nowhere. */
void insula_shown_free(struct insula_memory *memory);

#endif
