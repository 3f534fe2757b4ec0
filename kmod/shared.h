/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_SHARED_H
#define INSULA_SHARED_H

#include <linux/fs.h>

struct insula_node;

/*
 * INSULA_NODE_SHARE, its argument in user space, by a descriptor of the node, and
 * INSULA_NODE_SHARED. Node's lock held.
 */
int insula_node_share(struct insula_node *node, struct file *by, void __user *argument);
int insula_node_shared(struct insula_node *node);

/* It reads what it shares no more. Node's lock held. Sleeps. */
void insula_node_unshare(struct insula_node *node);

#endif
