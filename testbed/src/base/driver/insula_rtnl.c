// SPDX-License-Identifier: GPL-2.0-only
/*
 * Driver for tests, in nodes: reads the first page of `disk` again and again, past the page cache,
 * and holds the lock of network configuration meanwhile, as a card's driver does that loads its
 * firmware. With `hold` it does not release it before that is set to 0.
 */
#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/fs.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/pagemap.h>
#include <linux/rtnetlink.h>
#include <linux/slab.h>

/* While the lock is held. */
#define READS	16

static char *disk;
module_param(disk, charp, 0);
static bool hold;
module_param(hold, bool, 0600);

static struct file *file;
static struct task_struct *thread;
static DECLARE_COMPLETION(locked);

/* Whether to go on with the lock held. */
static bool rtnl_held(int reads)
{
	return !kthread_should_stop() && (reads < READS || READ_ONCE(hold));
}

static int rtnl_read(void *buffer)
{
	loff_t start;
	int reads;

	while (!kthread_should_stop()) {
		rtnl_lock();
		complete_all(&locked);
		for (reads = 0; rtnl_held(reads); reads++) {
			invalidate_mapping_pages(file->f_mapping, 0, -1);
			start = 0;
			if (kernel_read(file, buffer, PAGE_SIZE, &start) < 0)
				break;
			cond_resched();
		}
		rtnl_unlock();
		msleep(20);
	}
	kfree(buffer);
	return 0;
}

static int __init rtnl_init(void)
{
	void *buffer = kmalloc(PAGE_SIZE, GFP_KERNEL);

	if (!buffer)
		return -ENOMEM;
	file = disk ? filp_open(disk, O_RDONLY, 0) : ERR_PTR(-EINVAL);
	if (IS_ERR(file)) {
		kfree(buffer);
		return PTR_ERR(file);
	}
	thread = kthread_run(rtnl_read, buffer, "insula_rtnl");
	if (IS_ERR(thread)) {
		fput(file);
		kfree(buffer);
		return PTR_ERR(thread);
	}
	wait_for_completion(&locked);
	return 0;
}

static void __exit rtnl_exit(void)
{
	kthread_stop(thread);
	fput(file);
}

module_init(rtnl_init);
module_exit(rtnl_exit);

MODULE_DESCRIPTION("Driver for Insula's tests: holds a lock that a disk's bus must not need");
MODULE_LICENSE("GPL");
