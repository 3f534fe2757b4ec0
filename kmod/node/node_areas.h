/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_NODE_AREAS_H
#define INSULA_NODE_AREAS_H

#include "insula_module.h"

struct insula_node;

/* INSULA_NODE_CHANNELS and INSULA_NODE_DELEGATION. Lock held. */
int insula_node_lay_out_channels(struct insula_node *node, const struct insula_channels *channels);
int insula_node_lay_out_delegation(struct insula_node *node,
				   const struct insula_delegation *delegation);

#endif
