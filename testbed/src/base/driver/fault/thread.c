// SPDX-License-Identifier: GPL-2.0-only
/* Threads that faults are made with. */
#include <linux/cpumask.h>
#include <linux/err.h>
#include <linux/kthread.h>
#include <linux/sched/task.h>

#include "fault.h"

static int fault_thread_create(struct fault_thread *thread, int (*function)(void *))
{
	init_completion(&thread->done);
	thread->task = kthread_create(function, thread, "insula_fault");
	if (IS_ERR(thread->task))
		return PTR_ERR(thread->task);
	get_task_struct(thread->task);
	return 0;
}

/* A thread that executes the function, on no particular core. */
int fault_thread_run(struct fault_thread *thread, int (*function)(void *))
{
	int err = fault_thread_create(thread, function);

	if (!err)
		wake_up_process(thread->task);
	return err;
}

int fault_thread_run_on_core(struct fault_thread *thread, int (*function)(void *))
{
	int err;

	if (core >= nr_cpu_ids || !cpu_online(core))
		return -EINVAL;
	err = fault_thread_create(thread, function);
	if (err)
		return err;
	kthread_bind(thread->task, core);
	wake_up_process(thread->task);
	return 0;
}

int fault_thread_wait(void *data)
{
	struct fault_thread *thread = data;

	wait_for_completion_interruptible(&thread->done);
	return 0;
}

void fault_thread_end(struct fault_thread *thread)
{
	complete_all(&thread->done);
	kthread_stop(thread->task);
	put_task_struct(thread->task);
}
