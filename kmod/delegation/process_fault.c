// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faults of a process: how a task that has no syscall slot has the program's kernel map a page.
 * They are raised in entries of the process's page (insula_lwk.h), which tasks take in turn. A
 * task keeps its entry until it has looked the page up, for the result and so that the page is
 * not unmapped before; if the task was killed meanwhile, its entry expires.
 */
#include "delegation/process_fault.h"

#include <linux/jiffies.h>
#include <linux/string.h>
#include <linux/wait.h>

#include "delegation/mirror.h"

/* Polls for the answer before sleeping. */
#define POLLS	2000
/* Most consecutive faults of a task for the same page. */
#define FAULT_ATTEMPTS	8
/* How long a task keeps its entry at most, without another fault. */
#define KEEP_MS	1000

void insula_process_faults_init(struct insula_process_faults *faults)
{
	spin_lock_init(&faults->lock);
}

static struct insula_lwk_process *process_fault_page(struct insula_mirror *mirror)
{
	return insula_slots_process(mirror->slots, mirror->process);
}

/* Whether the node has answered the last fault of an entry. */
static bool process_fault_is_answered(struct insula_mirror *mirror,
				      const struct insula_process_fault *fault)
{
	u64 at = fault - mirror->faults.entry;
	/* Before the answer. */
	u64 answered = smp_load_acquire(&process_fault_page(mirror)->answers[at].sequence);

	return answered == READ_ONCE(fault->sequence);
}

/* Whether any task may take an entry. Lock held. */
static bool process_fault_is_free(struct insula_mirror *mirror,
				  const struct insula_process_fault *fault)
{
	if (fault->waiting || (fault->task && time_before(jiffies, fault->expires)))
		return false;
	return process_fault_is_answered(mirror, fault);
}

/* The calling task's entry, or NULL. Lock held. */
static struct insula_process_fault *process_fault_own(struct insula_process_faults *faults)
{
	struct insula_process_fault *fault = faults->entry;

	lockdep_assert_held(&faults->lock);
	for (; fault < &faults->entry[INSULA_LWK_FAULTS]; fault++)
		if (fault->task == current)
			return fault;
	return NULL;
}

static struct insula_process_fault *process_fault_free(struct insula_mirror *mirror)
{
	struct insula_process_fault *fault = mirror->faults.entry;

	for (; fault < &mirror->faults.entry[INSULA_LWK_FAULTS]; fault++)
		if (process_fault_is_free(mirror, fault))
			return fault;
	return NULL;
}

static bool process_fault_is_of(const struct insula_process_fault *fault, u64 address, bool write)
{
	return fault->address == address && fault->write == write;
}

/* Take an entry for a fault: the task's own, or a free one. NULL: all are in use. */
static struct insula_process_fault *process_fault_try_take(struct insula_mirror *mirror,
							   u64 address, bool write)
{
	struct insula_process_fault *fault;

	spin_lock(&mirror->faults.lock);
	fault = process_fault_own(&mirror->faults);
	if (fault && !process_fault_is_answered(mirror, fault)) {
		/* It timed out: it is of no use before the node has answered. */
		fault->task = NULL;
		fault = NULL;
	}
	if (!fault)
		fault = process_fault_free(mirror);
	if (fault) {
		if (fault->task != current || !process_fault_is_of(fault, address, write))
			fault->attempts = 0;
		fault->task = current;
		fault->address = address;
		fault->write = write;
		fault->waiting = true;
		WRITE_ONCE(fault->sequence, fault->sequence + 1);
	}
	spin_unlock(&mirror->faults.lock);
	return fault;
}

/* The result of waiting for a condition or the end of the node. `left`: of the wait. */
static int process_fault_wait_result(struct insula_mirror *mirror, long left)
{
	if (insula_slots_disconnected(mirror->slots))
		return -EPIPE;
	if (left < 0)
		return -EINTR;
	return left ? 0 : -ETIMEDOUT;
}

/* Tell the node's kernel of a fault. */
static void process_fault_post(struct insula_mirror *mirror,
			       const struct insula_process_fault *fault)
{
	u64 at = fault - mirror->faults.entry;
	struct insula_lwk_fault *shared = &process_fault_page(mirror)->faults[at];

	insula_slots_write(mirror->slots, &shared->address, fault->address);
	insula_slots_write(mirror->slots, &shared->access, fault->write);
	insula_slots_write(mirror->slots, &shared->sequence, fault->sequence);
	insula_slots_notify(mirror->slots, mirror->process);
}

/* Wait for the answer to a fault, up to `timeout` jiffies. */
static int process_fault_wait(struct insula_mirror *mirror,
			      const struct insula_process_fault *fault, long timeout)
{
	u64 at = fault - mirror->faults.entry;
	int polls = POLLS, err;
	long left;

	while (polls-- && !process_fault_is_answered(mirror, fault) && !need_resched())
		cpu_relax();
	left = wait_event_killable_timeout(*insula_slots_answers(mirror->slots),
					   process_fault_is_answered(mirror, fault) ||
					   insula_slots_disconnected(mirror->slots), timeout);
	err = process_fault_wait_result(mirror, left);
	if (err)
		return err;
	return READ_ONCE(process_fault_page(mirror)->answers[at].error) ? -EFAULT : 0;
}

int insula_process_fault_may_raise(struct insula_mirror *mirror, u64 address, bool write)
{
	struct insula_process_fault *fault;
	int err = 0;

	spin_lock(&mirror->faults.lock);
	fault = process_fault_own(&mirror->faults);
	if (fault && fault->attempts && process_fault_is_of(fault, address, write)) {
		err = fault->err;
		if (!err && fault->attempts >= FAULT_ATTEMPTS)
			err = -EIO;
		if (err)
			fault->task = NULL;
	}
	spin_unlock(&mirror->faults.lock);
	return err;
}

int insula_process_fault_raise(struct insula_mirror *mirror, u64 address, bool write,
			       unsigned int timeout_ms)
{
	struct insula_process_fault *fault = NULL;
	long left;
	int err;

	left = wait_event_killable_timeout(*insula_slots_answers(mirror->slots),
					   (fault = process_fault_try_take(mirror, address,
									   write)) ||
					   insula_slots_disconnected(mirror->slots),
					   msecs_to_jiffies(timeout_ms));
	if (!fault)
		return process_fault_wait_result(mirror, left);
	process_fault_post(mirror, fault);
	err = process_fault_wait(mirror, fault, max(left, 1L));
	spin_lock(&mirror->faults.lock);
	fault->waiting = false;
	fault->attempts++;
	fault->err = err;
	fault->expires = jiffies + msecs_to_jiffies(KEEP_MS);
	spin_unlock(&mirror->faults.lock);
	return err;
}

void insula_process_fault_looked_up(struct insula_mirror *mirror, u64 address, bool found)
{
	struct insula_process_fault *fault;
	u64 at;

	spin_lock(&mirror->faults.lock);
	fault = process_fault_own(&mirror->faults);
	if (fault && fault->address != address)
		fault = NULL;
	spin_unlock(&mirror->faults.lock);
	if (!fault)
		return;
	/* The entry is this task's until it says otherwise, unless it has expired just now. */
	at = fault - mirror->faults.entry;
	insula_slots_write(mirror->slots, &process_fault_page(mirror)->faults[at].looked_up,
			   fault->sequence);
	if (!found)
		return;
	spin_lock(&mirror->faults.lock);
	if (fault->task == current)
		fault->task = NULL;
	spin_unlock(&mirror->faults.lock);
	wake_up(insula_slots_answers(mirror->slots));
}
