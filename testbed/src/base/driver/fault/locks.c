// SPDX-License-Identifier: GPL-2.0-only
/* Locks that are never unlocked. */
#include <linux/mutex.h>
#include <linux/rwsem.h>

#include "fault.h"

/* `RWSEM_WRITER_LOCKED` of kernel/locking/rwsem.c. */
#define WRITER_LOCKED	1

static struct fault_thread mutex_owner, mutex_waiter, semaphore_owner, semaphore_waiter, first,
			   second;

/* A thread that has a lock and ends, and one that waits for the lock. */
static int orphan(struct fault_thread *owner, int (*lock)(void *), struct fault_thread *waiter,
		  int (*wait)(void *))
{
	int err = fault_thread_run(owner, lock);

	if (err)
		return err;
	wait_for_completion(&owner->done);
	err = fault_thread_run(waiter, wait);
	if (err)
		fault_thread_end(owner);
	return err;
}

static DEFINE_MUTEX(orphaned_mutex);

static int mutex_take(void *data)
{
	struct fault_thread *thread = data;

	mutex_lock(&orphaned_mutex);
	complete(&thread->done);
	return 0;
}

static int mutex_wait(void *data)
{
	mutex_lock(&orphaned_mutex);
	mutex_unlock(&orphaned_mutex);
	return 0;
}

static int mutex_inject(void)
{
	return orphan(&mutex_owner, mutex_take, &mutex_waiter, mutex_wait);
}

/* In the place of its owner. If a watcher has released it, this wakes who waits. */
static void mutex_undo(void)
{
	mutex_unlock(&orphaned_mutex);
	fault_thread_end(&mutex_waiter);
	fault_thread_end(&mutex_owner);
}

static DECLARE_RWSEM(orphaned_semaphore);

static int semaphore_take(void *data)
{
	struct fault_thread *thread = data;

	down_write(&orphaned_semaphore);
	complete(&thread->done);
	return 0;
}

static int semaphore_wait(void *data)
{
	down_read(&orphaned_semaphore);
	up_read(&orphaned_semaphore);
	return 0;
}

static int semaphore_inject(void)
{
	return orphan(&semaphore_owner, semaphore_take, &semaphore_waiter, semaphore_wait);
}

static void semaphore_undo(void)
{
	/* A watcher may have released it: who comes next wakes who waits. */
	if (!(atomic_long_read(&orphaned_semaphore.count) & WRITER_LOCKED))
		down_write(&orphaned_semaphore);
	up_write(&orphaned_semaphore);
	fault_thread_end(&semaphore_waiter);
	fault_thread_end(&semaphore_owner);
}

static DEFINE_MUTEX(firsts);
static DEFINE_MUTEX(seconds);
static DECLARE_COMPLETION(first_has);
static DECLARE_COMPLETION(second_has);

static int first_lock(void *data)
{
	mutex_lock(&firsts);
	complete_all(&first_has);
	wait_for_completion(&second_has);
	mutex_lock(&seconds);
	mutex_unlock(&seconds);
	mutex_unlock(&firsts);
	return 0;
}

static int second_lock(void *data)
{
	mutex_lock(&seconds);
	complete_all(&second_has);
	wait_for_completion(&first_has);
	mutex_lock(&firsts);
	mutex_unlock(&firsts);
	/* `seconds` is unlocked when this is undone. */
	return 0;
}

static int deadlock_inject(void)
{
	int err;

	reinit_completion(&first_has);
	reinit_completion(&second_has);
	err = fault_thread_run(&first, first_lock);
	if (err)
		return err;
	err = fault_thread_run(&second, second_lock);
	if (err) {
		complete_all(&second_has);
		fault_thread_end(&first);
	}
	return err;
}

static void deadlock_undo(void)
{
	wait_for_completion(&second_has);
	mutex_unlock(&seconds);
	fault_thread_end(&first);
	fault_thread_end(&second);
}

const struct fault lock_faults[] = {
	{ "mutex", mutex_inject, mutex_undo },
	{ "semaphore", semaphore_inject, semaphore_undo },
	{ "deadlock", deadlock_inject, deadlock_undo },
	{ }
};
