// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory that several nodes have beside their own, such as the root that all of them
 * read. Each holds the object: with the last of them, and of its descriptors, the
 * memory goes back. Nothing keeps a node from writing to it.
 */
#include "insula_module.h"

#include <linux/err.h>
#include <linux/fs.h>

#include "device.h"
#include "life.h"
#include "memory.h"
#include "shared.h"

/* Its devices are told by physical addresses, and may be told of this memory's, too. */
static int share(struct insula_node *node, struct file *memory)
{
	int err;

	if (!insula_memory_size(memory))
		return -EINVAL;
	err = insula_memory_share(memory);
	if (err)
		return err;
	err = insula_devices_extend(&node->devices, memory, 0);
	if (err)
		insula_memory_unshare(memory);
	else
		node->shared = memory;
	return err;
}

int insula_node_share(struct insula_node *node, struct file *by,
		      const struct insula_node_share *request)
{
	struct file *memory;
	int err;

	if (request->flags)
		return -EINVAL;
	if (node->state != INSULA_CREATING || node->shared)
		return -EBUSY;
	if (node->owner != by)
		return -EPERM;
	memory = insula_memory_get(request->memory);
	if (IS_ERR(memory))
		return PTR_ERR(memory);
	err = share(node, memory);
	if (err)
		insula_memory_put(memory);
	return err;
}

int insula_node_shared(struct insula_node *node)
{
	return node->shared ? insula_memory_install(node->shared) : -ENODATA;
}

void insula_node_unshare(struct insula_node *node)
{
	struct file *memory = node->shared;

	if (!memory)
		return;
	node->shared = NULL;
	/* What a core of it may still reach is never to be somebody's own. */
	if (!node->lost)
		insula_memory_unshare(memory);
	insula_memory_put(memory);
}
