/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_FILE_H
#define INSULA_FILE_H

#include <linux/fs.h>

/*
 * Create a file with its own inode, so that its f_mapping covers exactly its own mappings:
 * unmap_mapping_range() unmaps its pages from all processes, and page->mapping may refer to it.
 * Otherwise like anon_inode_getfile(). ERR_PTR.
 */
struct file *insula_file_create(const char *name, const struct file_operations *operations,
				void *data);

/* Install a descriptor for a file, taking over the caller's reference, also on failure. */
int insula_file_install(struct file *file);

#endif
