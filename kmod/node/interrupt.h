/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_NODE_INTERRUPT_H
#define INSULA_NODE_INTERRUPT_H

#include <linux/types.h>

struct insula_node;

/* INSULA_NODE_INTERRUPT, with the node's lock held. */
int insula_node_interrupt(struct insula_node *node, u32 index, u32 vector);

#endif
