/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_FILE_H
#define INSULA_FILE_H

#include <linux/fs.h>

/*
 * A file that has an inode to itself, so that its f_mapping knows its mappings and no
 * others: unmap_mapping_range() takes its pages from every process that maps them, and
 * page->mapping may name it. As anon_inode_getfile() else. ERR_PTR.
 */
struct file *insula_file_create(const char *name, const struct file_operations *operations,
				void *data);

/* A descriptor for the calling process of a file, whose reference it takes over. */
int insula_file_install(struct file *file);

#endif
