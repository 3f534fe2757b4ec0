// SPDX-License-Identifier: GPL-2.0-only
/*
 * A desk on the base's side: the thread that sits there and takes the node's turns. Where
 * seats are kept, and whose they are, is desks.c's.
 */
#include "seat.h"

#include <linux/jiffies.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>

#include "desks.h"

/* A word that is polled before sleeping, in the middle of a call. */
#define POLLS	2000
/* How often the node may be asked in a row for the same page, if it does not come. */
#define QUESTIONS	8

void insula_seat_init(struct insula_seat *seat, struct insula_desks *desks,
		      struct insula_lwk_desk *shared, u32 index)
{
	seat->desks = desks;
	seat->shared = shared;
	seat->index = index;
	spin_lock_init(&seat->lock);
	init_waitqueue_head(&seat->waiting);
}

void insula_seat_wake(struct insula_seat *seat)
{
	wake_up_all(&seat->waiting);
}

void insula_seat_wake_for_good(struct insula_seat *seat)
{
	spin_lock_irq(&seat->lock);
	spin_unlock_irq(&seat->lock);
	insula_seat_wake(seat);
}

void insula_seat_break_off(struct insula_seat *seat)
{
	unsigned long flags;

	spin_lock_irqsave(&seat->lock, flags);
	if (seat->task)
		send_sig(INSULA_SPACE_INTERRUPT, seat->task, 1);
	else
		seat->break_off = true;
	spin_unlock_irqrestore(&seat->lock, flags);
}

void insula_seat_clear(struct insula_seat *seat)
{
	struct task_struct *task;

	spin_lock_irq(&seat->lock);
	task = seat->task;
	seat->task = NULL;
	spin_unlock_irq(&seat->lock);
	if (task)
		put_task_struct(task);
	WRITE_ONCE(seat->taken, false);
}

int insula_seat_sit(struct insula_seat *seat)
{
	int err = -EBUSY;

	spin_lock_irq(&seat->lock);
	if (!seat->task) {
		seat->task = get_task_struct(current);
		seat->asked = (struct insula_asked) {};
		if (seat->break_off)
			send_sig(INSULA_SPACE_INTERRUPT, current, 1);
		seat->break_off = false;
		err = 0;
	}
	spin_unlock_irq(&seat->lock);
	return err;
}

/* Whether the node's thread waits for an answer. */
static bool is_asked(const struct insula_seat *seat)
{
	u64 turn = smp_load_acquire(&seat->shared->turn); /* what is asked */

	return turn != READ_ONCE(seat->shared->answer_turn);
}

/* Something to do: a turn, or the end. */
static bool is_over(const struct insula_seat *seat)
{
	return is_asked(seat) || insula_desks_gone(seat->desks);
}

static void say_asleep(struct insula_seat *seat, bool asleep)
{
	spin_lock_irq(&seat->lock);
	if (!insula_desks_gone(seat->desks))
		WRITE_ONCE(seat->shared->base_asleep, asleep);
	spin_unlock_irq(&seat->lock);
	smp_mb(); /* a turn that comes now sees that we sleep, or we see it */
}

/* Sleep until there is something to do. -ETIMEDOUT after `timeout` jiffies. */
static int wait_for_turn(struct insula_seat *seat, unsigned int task_state, long timeout)
{
	DEFINE_WAIT(entry);
	int err = 0;

	say_asleep(seat, true);
	while (!err) {
		prepare_to_wait(&seat->waiting, &entry, task_state);
		if (is_over(seat))
			break;
		if (signal_pending_state(task_state, current))
			err = -EINTR;
		else if (!timeout)
			err = -ETIMEDOUT;
		else
			timeout = schedule_timeout(timeout);
	}
	finish_wait(&seat->waiting, &entry);
	say_asleep(seat, false);
	return insula_desks_gone(seat->desks) ? -EPIPE : err;
}

int insula_seat_wait(struct insula_seat *seat)
{
	return wait_for_turn(seat, TASK_INTERRUPTIBLE, MAX_SCHEDULE_TIMEOUT);
}

void insula_seat_ring(struct insula_seat *seat)
{
	insula_desks_ring(seat->desks, &seat->shared->lwk_asleep);
}

/* Look for the node's next turn for a while, unless somebody else wants the core. */
static void poll_turn(const struct insula_seat *seat)
{
	int polls = POLLS;

	while (polls-- && !is_over(seat) && !need_resched())
		cpu_relax();
}

/* Answer the turn with a question. */
static int put_question(struct insula_seat *seat, u64 address, bool write)
{
	struct insula_lwk_desk *shared = seat->shared;
	int err = 0;

	spin_lock_irq(&seat->lock);
	if (insula_desks_gone(seat->desks)) {
		err = -EPIPE;
	} else if (!is_asked(seat)) {
		err = -EIO;
	} else {
		shared->kind = INSULA_LWK_FAULT;
		shared->result = address;
		shared->value = write;
		smp_store_release(&shared->answer_turn, READ_ONCE(shared->turn)); /* the rest */
	}
	spin_unlock_irq(&seat->lock);
	return err;
}

static int ask(struct insula_seat *seat, u64 address, bool write, unsigned int limit_ms)
{
	int err = put_question(seat, address, write);

	if (err)
		return err;
	insula_seat_ring(seat);
	poll_turn(seat);
	err = wait_for_turn(seat, TASK_KILLABLE, msecs_to_jiffies(limit_ms));
	if (err)
		return err;
	if (READ_ONCE(seat->shared->number) != INSULA_LWK_RESOLVED)
		return -EIO;
	return READ_ONCE(seat->shared->arguments[0]) ? -EFAULT : 0;
}

/* Whether a page is the last that was asked for, and nothing was said since. */
static bool is_last(const struct insula_seat *seat, u64 address, bool write)
{
	const struct insula_asked *asked = &seat->asked;

	return asked->times && asked->address == address && asked->write == write &&
	       asked->turn == READ_ONCE(seat->shared->turn);
}

int insula_seat_may_ask(const struct insula_seat *seat, u64 address, bool write)
{
	if (!is_last(seat, address, write))
		return 0;
	if (seat->asked.err)
		return seat->asked.err;
	return seat->asked.times < QUESTIONS ? 0 : -EIO;
}

int insula_seat_ask(struct insula_seat *seat, u64 address, bool write, unsigned int limit_ms)
{
	unsigned int times = is_last(seat, address, write) ? seat->asked.times : 0;
	int err = ask(seat, address, write, limit_ms);

	seat->asked = (struct insula_asked) {
		.address = address,
		.write = write,
		.turn = READ_ONCE(seat->shared->turn),
		.times = times + 1,
		.err = err,
	};
	return err;
}
