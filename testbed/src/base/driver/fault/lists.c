// SPDX-License-Identifier: GPL-2.0-only
/* Faults in the kernel's lists of tasks and of modules. */
#include <linux/idr.h>
#include <linux/module.h>
#include <linux/pid_namespace.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>

#include "fault.h"

static struct fault_thread unlisted, unnumbered, linked;

static int unlisted_inject(void)
{
	rwlock_t *lock = (void *)lookup("tasklist_lock");
	int err = lock ? fault_thread_run(&unlisted, fault_thread_wait) : -ENOENT;

	if (err)
		return err;
	write_lock_irq(lock);
	list_del_rcu(&unlisted.task->tasks);
	write_unlock_irq(lock);
	return 0;
}

static void unlisted_undo(void)
{
	rwlock_t *lock = (void *)lookup("tasklist_lock");
	struct list_head *entry = &unlisted.task->tasks;

	write_lock_irq(lock);
	/* A watcher may have done so. */
	if (entry->prev == LIST_POISON2)
		list_add_tail_rcu(entry, &init_task.tasks);
	write_unlock_irq(lock);
	fault_thread_end(&unlisted);
}

static int unnumbered_inject(void)
{
	int err = fault_thread_run(&unnumbered, fault_thread_wait);

	if (err)
		return err;
	idr_replace(&init_pid_ns.idr, NULL, unnumbered.task->pid);
	return 0;
}

static void unnumbered_undo(void)
{
	idr_replace(&init_pid_ns.idr, task_pid(unnumbered.task), unnumbered.task->pid);
	fault_thread_end(&unnumbered);
}

static struct module *hidden;

/* The list has the latest module first: the one before this. */
static int module_inject(void)
{
	struct mutex *lock = (void *)lookup("module_mutex");

	if (!lock)
		return -ENOENT;
	mutex_lock(lock);
	if (THIS_MODULE->list.next != THIS_MODULE->list.prev) {
		hidden = list_next_entry(THIS_MODULE, list);
		list_del_rcu(&hidden->list);
	}
	mutex_unlock(lock);
	return hidden ? 0 : -ENOENT;
}

static void module_undo(void)
{
	struct mutex *lock = (void *)lookup("module_mutex");

	mutex_lock(lock);
	list_add_rcu(&hidden->list, &THIS_MODULE->list);
	mutex_unlock(lock);
}

/* The thread before it in the list, which stays: no task may end beside a wrong link. */
static struct fault_thread neighbour;

static int link_inject(void)
{
	int err = fault_thread_run(&neighbour, fault_thread_wait);

	if (err)
		return err;
	err = fault_thread_run(&linked, fault_thread_wait);
	if (!err && linked.task->tasks.prev != &neighbour.task->tasks) {
		fault_thread_end(&linked);
		err = -EAGAIN;
	}
	if (err) {
		fault_thread_end(&neighbour);
		return err;
	}
	WRITE_ONCE(linked.task->tasks.prev, &linked.task->tasks);
	return 0;
}

static void link_undo(void)
{
	WRITE_ONCE(linked.task->tasks.prev, &neighbour.task->tasks);
	fault_thread_end(&linked);
	fault_thread_end(&neighbour);
}

const struct fault list_faults[] = {
	{ "unlisted", unlisted_inject, unlisted_undo },
	{ "unnumbered", unnumbered_inject, unnumbered_undo },
	{ "module", module_inject, module_undo },
	{ "link", link_inject, link_undo },
	{ }
};
