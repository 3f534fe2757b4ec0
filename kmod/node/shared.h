/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_SHARED_H
#define INSULA_SHARED_H

#include <linux/fs.h>

#include "insula_module.h"

struct insula_node;

/* INSULA_NODE_SHARE, by descriptor `by` of the node, and INSULA_NODE_SHARED. Node's lock held. */
int insula_node_share(struct insula_node *node, struct file *by,
		      const struct insula_node_share *request);
int insula_node_shared(struct insula_node *node);

/* Detach the shared memory of a node that has been stopped. Node's lock held. Sleeps. */
void insula_node_unshare(struct insula_node *node);

#endif
