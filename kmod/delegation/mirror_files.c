// SPDX-License-Identifier: GPL-2.0-only
/*
 * The proxy's descriptors when its program executes another, which Linux does not see: those with
 * the close-on-exec flag are closed, as by do_close_on_exec() of fs/file.c.
 */
#include "delegation/mirror.h"

#include <linux/bitops.h>
#include <linux/fdtable.h>
#include <linux/file.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>

/* The first descriptor from `from` on with the flag; closed ones may have it. -1: none. */
static int mirror_next_marked(unsigned int from)
{
	const struct fdtable *table;
	unsigned long found, size;

	rcu_read_lock();
	table = files_fdtable(current->files);
	size = table->max_fds;
	found = find_next_bit(table->close_on_exec, size, from);
	rcu_read_unlock();
	return found < size ? found : -1;
}

static bool mirror_is_file(int descriptor, const struct file *file)
{
	struct file *found = fget(descriptor);

	if (found)
		fput(found);
	return found == file;
}

int insula_mirror_close_on_exec(struct file *file)
{
	int descriptor = -1;

	while ((descriptor = mirror_next_marked(descriptor + 1)) >= 0) {
		if (!mirror_is_file(descriptor, file))
			close_fd(descriptor);
		cond_resched();
	}
	return 0;
}
