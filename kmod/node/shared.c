// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory shared by several nodes, such as a root file system that all of them read. Each node
 * holds the object: its memory is returned with the last of them and of its descriptors.
 * Nothing prevents a node from writing to it.
 */
#include "insula_module.h"

#include <linux/err.h>
#include <linux/file.h>

#include "device/device.h"
#include "mem/memory.h"
#include "node/node_state.h"
#include "node/shared.h"

/* Map it for the node's devices, too: drivers may pass them its physical addresses. */
static int shared_attach(struct insula_node *node, struct file *memory)
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
	err = shared_attach(node, memory);
	if (err)
		fput(memory);
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
	/* A core that could not be stopped may still access it: never let it be claimed. */
	if (!node->lost)
		insula_memory_unshare(memory);
	fput(memory);
}
