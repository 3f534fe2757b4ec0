/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_NODE_IOCTL_H
#define INSULA_NODE_IOCTL_H

#include <linux/fs.h>

/* ioctl() of a node's descriptor, whose private data is its struct insula_node. */
long insula_node_ioctl(struct file *file, unsigned int command, unsigned long argument);

#endif
