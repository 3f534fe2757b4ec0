/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_DESCRIPTION_H
#define INSULA_DESCRIPTION_H

#include <linux/kref.h>
#include <linux/types.h>

/*
 * Bytes kept for the owner of an image or a node, opaque to the module. Unlike its memory, a node
 * cannot write them.
 */
struct insula_description_data {
	struct kref refs;
	u32 size;
	u8 bytes[];
};

/* Copy from user space, with one reference. ERR_PTR(-E2BIG) beyond INSULA_DESCRIPTION_MAX. */
struct insula_description_data *insula_description_copy(u64 from, u32 size);

/* INSULA_DESCRIPTION: copy to user space. */
int insula_description_read(const struct insula_description_data *description,
			    void __user *argument);

struct insula_description_data *
insula_description_get(struct insula_description_data *description);

/* NULL is allowed. */
void insula_description_put(struct insula_description_data *description);

#endif
