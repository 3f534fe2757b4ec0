// SPDX-License-Identifier: GPL-2.0-only
/* Threads that hang, cores that hang, and an exception of the kernel's own. */
#include <linux/delay.h>
#include <linux/sched/task.h>
#include <linux/timekeeping.h>

#include "fault.h"

/* What occupies a core ends by itself after so long. */
#define LIMIT_S		60

static struct fault_thread hung, soft, hard, oops;

static int thread_hang(void *data)
{
	struct fault_thread *thread = data;

	wait_for_completion(&thread->done);
	return 0;
}

static bool is_over(struct fault_thread *thread, u64 deadline)
{
	return completion_done(&thread->done) || ktime_get_mono_fast_ns() > deadline;
}

/* Returns when to end. */
static u64 wait_for_begin(struct fault_thread *thread)
{
	while (!READ_ONCE(begin) && !completion_done(&thread->done))
		msleep(20);
	return ktime_get_mono_fast_ns() + LIMIT_S * NSEC_PER_SEC;
}

static int thread_spin(void *data)
{
	u64 deadline = wait_for_begin(data);

	preempt_disable();
	while (!is_over(data, deadline))
		cpu_relax();
	preempt_enable();
	return 0;
}

static int thread_spin_silently(void *data)
{
	u64 deadline = wait_for_begin(data);

	local_irq_disable();
	while (!is_over(data, deadline))
		cpu_relax();
	local_irq_enable();
	return 0;
}

static int thread_fault(void *data)
{
	int *nowhere = NULL;

	/* Behind the compiler's back. */
	OPTIMIZER_HIDE_VAR(nowhere);
	return READ_ONCE(*nowhere);
}

static int hung_inject(void)
{
	return fault_thread_run(&hung, thread_hang);
}

static void hung_undo(void)
{
	fault_thread_end(&hung);
}

static int soft_inject(void)
{
	return fault_thread_run_on_core(&soft, thread_spin);
}

static void soft_undo(void)
{
	fault_thread_end(&soft);
}

static int hard_inject(void)
{
	return fault_thread_run_on_core(&hard, thread_spin_silently);
}

static void hard_undo(void)
{
	fault_thread_end(&hard);
}

/* The thread dies; kthread_stop() of it would wait for nothing. */
static int oops_inject(void)
{
	int err = fault_thread_run(&oops, thread_fault);

	if (!err)
		put_task_struct(oops.task);
	return err;
}

const struct fault hang_faults[] = {
	{ "hung", hung_inject, hung_undo },
	{ "soft", soft_inject, soft_undo },
	{ "hard", hard_inject, hard_undo },
	{ "oops", oops_inject, NULL },
	{ }
};
