/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_GRANT_TABLES_H
#define INSULA_GRANT_TABLES_H

struct insula_node;

/* INSULA_NODE_GRANT_TABLE with its argument in user space: returns a descriptor. Locks the node. */
int insula_grant_table_create(struct insula_node *node, void __user *argument);

#endif
