// SPDX-License-Identifier: GPL-2.0-only
/*
 * A program that leaves its node: its kernel has it wait, and writes its state (insula_lwk.h).
 */
#include "insula_module.h"

#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "delegation/mirror.h"
#include "insula_lwk.h"

/* A thread waits for what no signal ends if it does not stop in this time. */
#define LEAVE_TIMEOUT	(5 * HZ)
#define LEAVE_POLL_US	100

static void mirror_leave_set(struct insula_mirror *mirror, bool leave)
{
	struct insula_lwk_process *process = insula_slots_process(mirror->slots, mirror->process);

	insula_slots_write(mirror->slots, &process->leave, leave);
	insula_slots_notify(mirror->slots, mirror->process);
	if (!leave)
		atomic_set_release(&mirror->leaving, 0);
}

/* Wait until the state is there: `left`. */
static int mirror_leave_wait(struct insula_mirror *mirror, const u64 *left)
{
	unsigned long deadline = jiffies + LEAVE_TIMEOUT;

	while (!smp_load_acquire(left)) { /* left_size, and the state */
		if (insula_slots_disconnected(mirror->slots))
			return -EPIPE;
		if (signal_pending(current))
			return -EINTR;
		if (time_after(jiffies, deadline))
			return -ETIMEDOUT;
		usleep_range(LEAVE_POLL_US, 2 * LEAVE_POLL_US);
	}
	return 0;
}

static int mirror_leave(struct insula_mirror *mirror, struct insula_mirror_leave *request)
{
	struct insula_lwk_process *process = insula_slots_process(mirror->slots, mirror->process);
	int err;

	if (READ_ONCE(process->left) || atomic_cmpxchg(&mirror->leaving, 0, 1))
		return -EBUSY;
	mirror_leave_set(mirror, true);
	err = mirror_leave_wait(mirror, &process->left);
	request->address = READ_ONCE(process->left);
	request->size = READ_ONCE(process->left_size);
	if (!err && !request->size)
		err = -EOPNOTSUPP;
	if (err)
		mirror_leave_set(mirror, false);
	return err;
}

int insula_mirror_leave(struct insula_mirror *mirror, void __user *argument)
{
	struct insula_mirror_leave request;
	int err = 0;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (request.flags & ~INSULA_MIRROR_LEAVE_CANCEL || !atomic_read(&mirror->started))
		return -EINVAL;
	if (request.flags & INSULA_MIRROR_LEAVE_CANCEL)
		mirror_leave_set(mirror, false);
	else
		err = mirror_leave(mirror, &request);
	if (!err && copy_to_user(argument, &request, sizeof(request)))
		err = -EFAULT;
	return err;
}
