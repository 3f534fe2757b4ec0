/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_RESIZE_H
#define INSULA_RESIZE_H

#include "node/node_state.h"

struct insula_ringable;

/* Allocate the set of cores whose doorbells may be rung; NULL: no memory. */
struct insula_ringable *insula_ringable_new(const u32 *cpus, u32 count);

/* INSULA_NODE_GROW and INSULA_NODE_SHRINK with their argument in user space. Lock the node. */
int insula_node_grow(struct insula_node *node, void __user *argument);
int insula_node_shrink(struct insula_node *node, void __user *argument);

#endif
