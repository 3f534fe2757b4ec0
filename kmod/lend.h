/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_LEND_H
#define INSULA_LEND_H

struct insula_node;

/*
 * INSULA_NODE_LEND, its argument in user space: answers a descriptor by which the calling
 * process lends its memory. Locks the node, which runs.
 */
int insula_lender_create(struct insula_node *node, void __user *argument);

#endif
