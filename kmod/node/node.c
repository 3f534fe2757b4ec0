// SPDX-License-Identifier: GPL-2.0-only
/*
 * Nodes by name and by descriptor: creation, lookup, removal. Their ioctls are in node_ioctl.c,
 * their states in node_state.c.
 */
#include "insula_module.h"

#include <linux/anon_inodes.h>
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/file.h>
#include <linux/jiffies.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "channel/area.h"
#include "cpu/core.h"
#include "delegation/slots.h"
#include "grant/grant_channel.h"
#include "mem/memory.h"
#include "node/description.h"
#include "node/node.h"
#include "node/node_ioctl.h"
#include "node/node_state.h"
#include "node/registry.h"
#include "node/shared.h"

/* How long to retry locking busy nodes when the base goes down. */
#define BASE_DOWN_TIMEOUT	(2 * HZ)
#define BASE_DOWN_POLL_MS	20

static struct insula_registry nodes = INSULA_REGISTRY(nodes);
static atomic_t last_id = ATOMIC_INIT(0);
static const struct file_operations node_fops;

static struct insula_node *node_of(struct insula_named *named)
{
	return container_of(named, struct insula_node, named);
}

/* Remove a node that has no cores: from the registry, and free its memory. Lock held. */
static void node_vanish(struct insula_node *node)
{
	struct file *memory = node->memory;

	lockdep_assert_held(&node->lock);
	mutex_lock(&nodes.lock);
	list_del_init(&node->named.link);
	mutex_unlock(&nodes.lock);
	WRITE_ONCE(node->memory, NULL);
	insula_node_unshare(node);
	insula_node_drop_monitor(node);
	insula_grant_channel_put(node->grants);
	WRITE_ONCE(node->grants, NULL);
	insula_area_put(node->area);
	node->area = NULL;
	insula_slots_put(node->slots);
	node->slots = NULL;
	insula_node_changed(node);
	fput(memory);
}

/* Allocate a node and copy its arguments from user space, before anything is taken. */
static struct insula_node *node_new(const struct insula_node_create *request)
{
	struct insula_node *node = insula_node_new();
	int err;

	if (!node)
		return ERR_PTR(-ENOMEM);
	node->cpus_count = request->cpus_count;
	node->core_share = request->core_share;
	node->share_by = request->share_by;
	err = insula_name_copy(node->named.name, request->name);
	if (err)
		goto free;
	node->cpus = memdup_user(u64_to_user_ptr(request->cpus),
				 request->cpus_count * sizeof(*node->cpus));
	if (IS_ERR(node->cpus)) {
		err = PTR_ERR(node->cpus);
		node->cpus = NULL;
		goto free;
	}
	node->description = insula_description_copy(request->description,
						    request->description_size);
	if (!IS_ERR(node->description))
		return node;
	err = PTR_ERR(node->description);
	node->description = NULL;
free:
	insula_node_put(node);
	return ERR_PTR(err);
}

/* Acquire memory, name and cores: the costliest to undo last. */
static int node_acquire(struct insula_node *node, int memory_fd)
{
	struct file *memory = insula_memory_get_any(memory_fd);
	int err;

	if (IS_ERR(memory))
		return PTR_ERR(memory);
	err = insula_memory_claim(memory);
	if (err)
		goto put_memory;
	mutex_lock(&nodes.lock);
	err = insula_registry_add(&nodes, &node->named);
	mutex_unlock(&nodes.lock);
	if (err)
		goto unclaim;
	node->id = atomic_inc_return(&last_id);
	err = insula_node_take_cores(node);
	if (!err) {
		node->memory = memory;
		return 0;
	}
	mutex_lock(&nodes.lock);
	list_del_init(&node->named.link);
	mutex_unlock(&nodes.lock);
unclaim:
	insula_memory_unclaim(memory);
put_memory:
	fput(memory);
	return err;
}

/* Open a file for a node, taking over the caller's reference, also on failure. */
static struct file *node_open_file(struct insula_node *node)
{
	struct file *file = anon_inode_getfile("[insula-node]", &node_fops, node, O_RDWR);

	if (IS_ERR(file))
		insula_node_put(node);
	return file;
}

/* With descriptor and file at hand: nothing can fail after this. */
static int node_create(struct insula_node *node, struct file *file, int memory_fd)
{
	int err;

	mutex_lock(&node->lock);
	node->owner = file;
	err = node_acquire(node, memory_fd);
	mutex_unlock(&node->lock);
	return err;
}

static bool node_share_valid(const struct insula_node_create *request)
{
	if (!request->core_share)
		return !request->share_by;
	return request->core_share <= 99 && request->cpus_count == 1 &&
	       request->share_by <= INSULA_SHARE_BY_VMM;
}

int insula_node_create(void __user *argument)
{
	struct insula_node_create request;
	struct file *file;
	struct insula_node *node;
	int fd, err;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (!request.cpus_count || request.cpus_count > INSULA_NODE_CPUS_MAX)
		return -EINVAL;
	if (!node_share_valid(&request))
		return -EINVAL;
	err = insula_node_may_start();
	if (err)
		return err;
	node = node_new(&request);
	if (IS_ERR(node))
		return PTR_ERR(node);
	file = node_open_file(node);
	if (IS_ERR(file))
		return PTR_ERR(file);
	fd = get_unused_fd_flags(O_CLOEXEC);
	err = fd < 0 ? fd : node_create(node, file, request.memory);
	if (!err) {
		fd_install(fd, file);
		return fd;
	}
	if (fd >= 0)
		put_unused_fd(fd);
	fput(file);
	return err;
}

static int node_install(struct insula_node *node)
{
	struct file *file = node_open_file(node);
	int fd;

	if (IS_ERR(file))
		return PTR_ERR(file);
	fd = get_unused_fd_flags(O_CLOEXEC);
	if (fd < 0)
		fput(file);
	else
		fd_install(fd, file);
	return fd;
}

int insula_node_open(void __user *argument)
{
	char name[INSULA_NAME_MAX];
	struct insula_name request;
	struct insula_named *named;
	int err;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	err = insula_name_copy(name, request.name);
	if (err)
		return err;
	mutex_lock(&nodes.lock);
	named = insula_registry_find(&nodes, name);
	if (named)
		kref_get(&node_of(named)->refs);
	mutex_unlock(&nodes.lock);
	return named ? node_install(node_of(named)) : -ENOENT;
}

int insula_node_rename(struct insula_node *node, const struct insula_name *to)
{
	char name[INSULA_NAME_MAX];
	int err;

	lockdep_assert_held(&node->lock);
	err = insula_name_copy(name, to->name);
	if (err)
		return err;
	mutex_lock(&nodes.lock);
	err = insula_registry_rename(&nodes, &node->named, name);
	mutex_unlock(&nodes.lock);
	return err;
}

int insula_node_exchange_names(struct insula_node *node, const struct insula_name *with)
{
	struct insula_named *other;
	char name[INSULA_NAME_MAX];
	int err;

	lockdep_assert_held(&node->lock);
	err = insula_name_copy(name, with->name);
	if (err)
		return err;
	mutex_lock(&nodes.lock);
	other = insula_registry_find(&nodes, name);
	if (other)
		insula_registry_exchange(&nodes, &node->named, other);
	else
		err = -ENOENT;
	mutex_unlock(&nodes.lock);
	return err;
}

void insula_node_copy_name(struct insula_node *node, char *to)
{
	mutex_lock(&nodes.lock);
	memcpy(to, node->named.name, INSULA_NAME_MAX);
	mutex_unlock(&nodes.lock);
}

int insula_node_list(void __user *argument)
{
	return insula_registry_list(&nodes, argument);
}

int insula_node_remove(struct insula_node *node)
{
	if (node->state != INSULA_STOPPED)
		return -EBUSY;
	insula_node_retire(node); /* it may still keep its cores */
	node_vanish(node);
	insula_node_put(node); /* the registry's; the caller's descriptor has one too */
	return 0;
}

/* Without the lock, which may be held for long: each word is read on its own. */
static __poll_t node_poll(struct file *file, struct poll_table_struct *wait)
{
	struct insula_node *node = file->private_data;
	__poll_t events = 0;

	poll_wait(file, &node->changes, wait);
	if (!READ_ONCE(node->memory))
		return EPOLLHUP;
	if (READ_ONCE(node->state) == INSULA_STOPPED)
		events |= EPOLLIN | EPOLLRDNORM;
	if (READ_ONCE(node->retired))
		events |= EPOLLPRI;
	return events;
}

static int node_release(struct inode *inode, struct file *file)
{
	struct insula_node *node = file->private_data;

	mutex_lock(&node->lock);
	if (node->memory && insula_node_file_closed(node, file))
		node_vanish(node);
	mutex_unlock(&node->lock);
	insula_node_put(node);
	return 0;
}

static const struct file_operations node_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = insula_node_ioctl,
	.poll = node_poll,
	.release = node_release,
};

/* Stop all nodes. Returns the number of those that are busy and were not stopped. */
static unsigned int node_stop_all(void)
{
	struct insula_named *named;
	unsigned int left = 0;

	mutex_lock(&nodes.lock);
	list_for_each_entry(named, &nodes.named, link) {
		struct insula_node *node = node_of(named);

		/* Its holder may wait for the registry's lock: do not wait here. */
		if (!mutex_trylock(&node->lock)) {
			left++;
			continue;
		}
		insula_node_base_down(node);
		mutex_unlock(&node->lock);
	}
	mutex_unlock(&nodes.lock);
	return left;
}

void insula_nodes_base_down(void)
{
	unsigned long deadline = jiffies + BASE_DOWN_TIMEOUT;

	insula_cores_close();
	synchronize_rcu();
	while (node_stop_all() && time_before(jiffies, deadline))
		msleep(BASE_DOWN_POLL_MS);
	/* Stop the cores of busy nodes without their lock. */
	insula_cores_park_all();
}
