/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_NODES_H
#define INSULA_NODES_H

struct insula_name;
struct insula_node;

/* The control descriptor's ioctls for nodes, with their argument in user space. */
int insula_node_create(void __user *argument);
int insula_node_open(void __user *argument);
int insula_node_list(void __user *argument);

/* INSULA_NODE_REMOVE. -EBUSY: it is not stopped. Lock held. Sleeps. */
int insula_node_remove(struct insula_node *node);

/* INSULA_NODE_RENAME. Lock held. */
int insula_node_rename(struct insula_node *node, const struct insula_name *to);

/* INSULA_NODE_EXCHANGE_NAMES. Lock held. */
int insula_node_exchange_names(struct insula_node *node, const struct insula_name *with);

/* Copy its name, INSULA_NAME_MAX bytes, as it is now. */
void insula_node_copy_name(struct insula_node *node, char *to);

/* The base goes down: stop every node, keep its cores. */
void insula_nodes_base_down(void);

#endif
