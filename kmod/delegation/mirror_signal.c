// SPDX-License-Identifier: GPL-2.0-only
/*
 * Signals that a proxy gets for its program, and stops that it cannot catch.
 */
#include "insula_module.h"

#include <linux/delay.h>
#include <linux/ktime.h>
#include <linux/pid.h>
#include <linux/sched/jobctl.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "delegation/mirror.h"
#include "insula_lwk.h"

/* How long a signal waits for room in a full queue. */
#define SIGNAL_WAIT_MS	1000

/* Whether the calling thread is about to be stopped, even by SIGSTOP. */
static bool mirror_stop_pending(void)
{
	bool pending;

	spin_lock_irq(&current->sighand->siglock);
	pending = current->jobctl & JOBCTL_STOP_PENDING ||
		     sigismember(&current->pending.signal, SIGSTOP) ||
		     sigismember(&current->signal->shared_pending.signal, SIGSTOP);
	spin_unlock_irq(&current->sighand->siglock);
	return pending;
}

/* Check and report under one lock, so that the last check is the last report. */
void insula_mirror_report_stopped(struct insula_mirror *mirror)
{
	struct insula_lwk_process *process = insula_slots_process(mirror->slots, mirror->process);
	bool stopped;

	mutex_lock(&mirror->stopped_lock);
	stopped = mirror_stop_pending();
	if (stopped != mirror->stopped) {
		WRITE_ONCE(mirror->stopped, stopped);
		insula_slots_write(mirror->slots, &process->stopped, stopped);
		insula_slots_notify(mirror->slots, mirror->process);
	}
	mutex_unlock(&mirror->stopped_lock);
}

/*
 * Queue a signal with its siginfo. If the queue stays full, since the node does not take its
 * entries, only the signal's number is passed on.
 */
int insula_mirror_signal(struct insula_mirror *mirror, void __user *argument)
{
	ktime_t limit = ktime_add_ms(ktime_get(), SIGNAL_WAIT_MS);
	struct insula_mirror_signal came;
	struct insula_lwk_signal signal;

	if (copy_from_user(&came, argument, sizeof(came)))
		return -EFAULT;
	if (came.signal < 1 || came.signal > _NSIG)
		return -EINVAL;
	signal.signal = came.signal;
	signal.error = came.error;
	signal.code = came.code;
	signal.thread = task_pid_vnr(current);
	memcpy(signal.fields, came.fields, sizeof(signal.fields));
	if (READ_ONCE(mirror->stopped))
		insula_mirror_report_stopped(mirror);
	while (!insula_slots_signal(mirror->slots, mirror->process, &signal,
				    ktime_after(ktime_get(), limit))) {
		insula_slots_notify(mirror->slots, mirror->process);
		if (fatal_signal_pending(current))
			return -EINTR;
		usleep_range(50, 200);
	}
	insula_slots_notify(mirror->slots, mirror->process);
	return insula_slots_disconnected(mirror->slots) ? -EPIPE : 0;
}
