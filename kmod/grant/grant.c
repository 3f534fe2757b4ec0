// SPDX-License-Identifier: GPL-2.0-only
/*
 * Grant tables: descriptors by which a process of the base grants its own memory to a node, in
 * windows (grant_window.c).
 */
#include "grant/grant.h"

#include <linux/err.h>
#include <linux/file.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/xarray.h>

#include "grant/grant_channel.h"
#include "grant/grant_window.h"
#include "mem/file.h"
#include "mem/shown.h"
#include "node/node_state.h"

/*
 * One window at a time. Results are copied out unlocked: the caller's memory may be a node's,
 * even this one's.
 */
static int grant_all(struct grant_table *table, const struct insula_grant_add *grant, u64 *pages)
{
	u64 __user *to = u64_to_user_ptr(grant->pages);
	u64 done, all = grant->size >> PAGE_SHIFT, copied;
	int count;

	for (done = 0; done < all; done += count) {
		if (fatal_signal_pending(current) || mutex_lock_killable(&table->call_lock))
			return -EINTR;
		count = insula_grant_window_add(table, grant->address + (done << PAGE_SHIFT),
						grant->address + grant->size, grant->flags,
						pages);
		mutex_unlock(&table->call_lock);
		if (count < 0)
			return count;
		copied = done < grant->capacity ? min_t(u64, count, grant->capacity - done) : 0;
		if (copy_to_user(&to[done], pages, copied * sizeof(*pages)))
			return -EFAULT;
	}
	return 0;
}

static bool grant_range_valid(u64 address, u64 size)
{
	return size && !((address | size) & ~PAGE_MASK) && address < TASK_SIZE_MAX &&
	       size <= TASK_SIZE_MAX - address;
}

static int grant_ioctl_add(struct grant_table *table, void __user *argument)
{
	struct insula_grant_add grant;
	u64 *pages;
	int err;

	if (copy_from_user(&grant, argument, sizeof(grant)))
		return -EFAULT;
	if (grant.flags & ~INSULA_GRANT_WRITABLE || !grant_range_valid(grant.address, grant.size))
		return -EINVAL;
	err = insula_grant_channel_connect(table->channel);
	if (err)
		return err;
	pages = kmalloc_array(INSULA_GRANT_WINDOW_PAGES, sizeof(*pages), GFP_KERNEL);
	if (!pages)
		return -ENOMEM;
	if (mmget_not_zero(table->mm)) {
		err = grant_all(table, &grant, pages);
		mmput(table->mm);
	} else {
		err = -ESRCH;
	}
	kfree(pages);
	return err;
}

static int grant_ioctl_revoke(struct grant_table *table, void __user *argument)
{
	struct insula_grant_revoke revoke;

	if (copy_from_user(&revoke, argument, sizeof(revoke)))
		return -EFAULT;
	if (!grant_range_valid(revoke.address, revoke.size))
		return -EINVAL;
	if (mutex_lock_killable(&table->call_lock))
		return -EINTR;
	insula_grant_windows_revoke(table, revoke.address, revoke.address + revoke.size);
	mutex_unlock(&table->call_lock);
	return 0;
}

static long grant_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	switch (command) {
	case INSULA_GRANT_ADD:
		return grant_ioctl_add(file->private_data, (void __user *)argument);
	case INSULA_GRANT_REVOKE:
		return grant_ioctl_revoke(file->private_data, (void __user *)argument);
	default:
		return -ENOTTY;
	}
}

static void grant_table_free(struct grant_table *table)
{
	insula_grant_windows_remove(table);
	mmdrop(table->mm);
	insula_grant_channel_put(table->channel);
	insula_node_put(table->node);
	kvfree(table);
}

static int grant_release(struct inode *inode, struct file *file)
{
	grant_table_free(file->private_data);
	return 0;
}

static const struct file_operations grant_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = grant_ioctl,
	.release = grant_release,
};

static struct grant_table *grant_table_new(struct insula_node *node, u32 timeout_ms)
{
	struct grant_table *table = kvzalloc(sizeof(*table), GFP_KERNEL);

	if (!table)
		return NULL;
	insula_grant_channel_get(node->grants);
	table->channel = node->grants;
	kref_get(&node->refs);
	table->node = node;
	mmgrab(current->mm);
	table->mm = current->mm;
	table->id = insula_grant_channel_new_id(node->grants);
	table->timeout_ms = timeout_ms;
	mutex_init(&table->call_lock);
	xa_init(&table->windows);
	return table;
}

/* Create the node's grant channel, on the first grant table in this run. */
static int grant_channel_prepare(struct insula_node *node)
{
	struct insula_grant_channel *channel;

	lockdep_assert_held(&node->lock);
	if (node->state != INSULA_RUNNING)
		return -EPIPE;
	if (!node->area)
		return -ENOENT;
	if (node->paused)
		return -EBUSY;
	if (node->grants)
		return 0;
	channel = insula_grant_channel_create(node->area, node->vmm.nested);
	if (IS_ERR(channel))
		return PTR_ERR(channel);
	WRITE_ONCE(node->grants, channel);
	return 0;
}

static struct grant_table *grant_table_open(struct insula_node *node, u32 timeout_ms)
{
	int err = insula_node_lock(node);
	struct grant_table *table;

	if (err)
		return ERR_PTR(err);
	/* Frames of the base would be where the node takes other memory for. */
	err = insula_memory_is_shown(node->memory) ? -EOPNOTSUPP : grant_channel_prepare(node);
	table = err ? ERR_PTR(err) : grant_table_new(node, timeout_ms);
	mutex_unlock(&node->lock);
	return table ?: ERR_PTR(-ENOMEM);
}

int insula_grant_table_create(struct insula_node *node, void __user *argument)
{
	struct insula_grant_table request;
	struct grant_table *table;
	struct file *file;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (request.timeout_ms < INSULA_GRANT_TIMEOUT_MIN_MS ||
	    request.timeout_ms > INSULA_GRANT_TIMEOUT_MAX_MS)
		return -EINVAL;
	table = grant_table_open(node, request.timeout_ms);
	if (IS_ERR(table))
		return PTR_ERR(table);
	request.id = table->id;
	if (copy_to_user(argument, &request, sizeof(request))) {
		grant_table_free(table);
		return -EFAULT;
	}
	file = insula_file_create("[insula-grant-table]", &grant_fops, table);
	if (IS_ERR(file)) {
		grant_table_free(table);
		return PTR_ERR(file);
	}
	return insula_file_install(file);
}
