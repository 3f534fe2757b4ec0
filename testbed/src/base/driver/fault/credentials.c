// SPDX-License-Identifier: GPL-2.0-only
/* A process with privileges that it did not get by itself. */
#include <linux/cred.h>
#include <linux/pid.h>
#include <linux/sched/task.h>

#include "fault.h"

static struct task_struct *task;
static const struct cred *own_credentials;

/* Swaps the credentials of the task, which waits and does not use them. */
static const struct cred *credentials_swap(const struct cred *credentials)
{
	const struct cred *before = rcu_dereference_protected(task->cred, true);

	rcu_assign_pointer(task->real_cred, credentials);
	rcu_assign_pointer(task->cred, credentials);
	return before;
}

static int credentials_inject(void)
{
	const struct cred *kernels = (void *)lookup("init_cred");
	struct pid *id = find_get_pid(process);

	task = get_pid_task(id, PIDTYPE_PID);
	put_pid(id);
	if (!task)
		return -ESRCH;
	own_credentials = credentials_swap(kernels);
	return 0;
}

static void credentials_undo(void)
{
	credentials_swap(own_credentials);
	put_task_struct(task);
}

const struct fault credentials_faults[] = {
	{ "credentials", credentials_inject, credentials_undo },
	{ }
};
