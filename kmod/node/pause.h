/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_PAUSE_H
#define INSULA_PAUSE_H

struct insula_node;

/* INSULA_NODE_PAUSE and INSULA_NODE_RESUME, with the node's lock held. */
int insula_node_pause(struct insula_node *node);
int insula_node_resume(struct insula_node *node);

#endif
