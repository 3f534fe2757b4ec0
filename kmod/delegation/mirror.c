// SPDX-License-Identifier: GPL-2.0-only
/*
 * mm mirrors: the address space of a node's program as its proxy sees it (insula_lwk.h). Here
 * are their lifetime and the proxy's ioctls; page faults are in mirror_fault.c, invalidations in
 * mirror_invalidate.c.
 */
#include "insula_module.h"

#include <linux/err.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/rwsem.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>

#include "delegation/mirror.h"
#include "insula_lwk.h"
#include "mem/file.h"

/* Interval between checks whether pages of an exited program are still pinned. */
#define QUIESCE_POLL_MS	10

static struct workqueue_struct *mirrors_queue;
static const struct file_operations mirror_fops;

/* The node has ended: unmap its memory. */
static void mirror_disconnected(struct insula_slots_user *user)
{
	struct insula_mirror *mirror = insula_mirror_of(user);

	insula_base_mappings_end(&mirror->base);
	down_write(&mirror->walk_lock);
	if (mirror->mapping)
		unmap_mapping_range(mirror->mapping, 0, 0, 1);
	up_write(&mirror->walk_lock);
}

static void mirror_free(struct insula_mirror *mirror)
{
	insula_base_mappings_destroy(&mirror->base);
	insula_frame_tracker_destroy(&mirror->tracker);
	xa_destroy(&mirror->attached);
	if (mirror->mm)
		mmdrop(mirror->mm);
	insula_slots_put(mirror->slots);
	kfree(mirror);
}

/* After the last unmap: report QUIESCED to the program's kernel once no page is pinned. */
static void mirror_quiesce_work(struct work_struct *work)
{
	struct insula_mirror *mirror = container_of(to_delayed_work(work), struct insula_mirror,
						    quiesce_work);
	bool pinned;

	/* The proxy's memory is gone. */
	insula_base_mappings_destroy(&mirror->base);
	mutex_lock(&mirror->tracker_lock);
	insula_frame_tracker_unmapped(&mirror->tracker, mirror->start, mirror->end);
	pinned = insula_frame_tracker_list_pinned(&mirror->tracker, NULL, 0, 0);
	mutex_unlock(&mirror->tracker_lock);
	if (pinned && !insula_slots_disconnected(mirror->slots)) {
		queue_delayed_work(mirrors_queue, &mirror->quiesce_work,
				   msecs_to_jiffies(QUIESCE_POLL_MS));
		return;
	}
	insula_slots_release_process(mirror->slots, mirror->process, &mirror->user);
	mirror_free(mirror);
}

/* A mirror without a proxy. */
static struct insula_mirror *mirror_new(struct insula_slots *slots, u64 start, u64 end)
{
	struct insula_mirror *mirror = kzalloc(sizeof(*mirror), GFP_KERNEL);

	if (!mirror)
		return NULL;
	mirror->slots = slots;
	insula_slots_get(slots);
	mirror->start = start;
	mirror->end = end;
	init_rwsem(&mirror->walk_lock);
	mutex_init(&mirror->tracker_lock);
	mutex_init(&mirror->invalidate_lock);
	mutex_init(&mirror->stopped_lock);
	insula_frame_tracker_init(&mirror->tracker);
	insula_process_faults_init(&mirror->faults);
	insula_base_mappings_init(&mirror->base, insula_slots_nested(slots));
	xa_init(&mirror->attached);
	mirror->user.disconnected = mirror_disconnected;
	INIT_DELAYED_WORK(&mirror->quiesce_work, mirror_quiesce_work);
	return mirror;
}

/* Allocate its pages in the area, and the first slot. `parent`: process forked from, or 0. */
static int mirror_add_process(struct insula_mirror *mirror, u32 parent)
{
	struct insula_lwk_process *process;
	struct insula_syscall_slot *slot;
	int page = insula_slots_add_process(mirror->slots, &mirror->user);

	if (page < 0)
		return page;
	mirror->process = page;
	slot = insula_slots_alloc(mirror->slots, page);
	if (IS_ERR(slot)) {
		insula_slots_release_process(mirror->slots, page, &mirror->user);
		return PTR_ERR(slot);
	}
	process = insula_slots_process(mirror->slots, page);
	mirror->first = slot;
	insula_slots_write(mirror->slots, &process->slot, slot->index);
	insula_slots_write(mirror->slots, &process->parent, parent);
	insula_slots_write(mirror->slots, &process->mirror_start, mirror->start);
	insula_slots_write(mirror->slots, &process->mirror_end, mirror->end);
	return 0;
}

/* A mirror on a node, without a proxy. */
static struct insula_mirror *mirror_create(struct insula_slots *slots, u64 start, u64 end,
					   u32 parent)
{
	struct insula_mirror *mirror = mirror_new(slots, start, end);
	int err;

	if (!mirror)
		return ERR_PTR(-ENOMEM);
	err = mirror_add_process(mirror, parent);
	if (!err)
		return mirror;
	mirror_free(mirror);
	return ERR_PTR(err);
}

/* Install its descriptor, whose release frees the mirror. With `err` only undo creation. */
static int mirror_install(struct insula_mirror *mirror, int err)
{
	struct file *file = err ? ERR_PTR(err) :
			    insula_file_create("[insula-mirror]", &mirror_fops, mirror);

	if (IS_ERR(file)) {
		insula_slots_exit_process(mirror->slots, mirror->process);
		insula_slots_release_process(mirror->slots, mirror->process, &mirror->user);
		mirror_free(mirror);
		return PTR_ERR(file);
	}
	mirror->mapping = file->f_mapping;
	refcount_set(&mirror->users, 1);
	return insula_file_install(file);
}

static int mirror_ioctl_fork(struct insula_mirror *parent, void __user *argument)
{
	struct insula_mirror_fork answer;
	struct insula_mirror *mirror;

	mirror = mirror_create(parent->slots, parent->start, parent->end, parent->process);
	if (IS_ERR(mirror))
		return PTR_ERR(mirror);
	answer.slot = mirror->first->index;
	answer.process = mirror->process;
	return mirror_install(mirror,
			      copy_to_user(argument, &answer, sizeof(answer)) ? -EFAULT : 0);
}

static int mirror_ioctl_start(struct insula_mirror *mirror, void __user *argument)
{
	struct insula_lwk_process *process = insula_slots_process(mirror->slots, mirror->process);
	struct insula_mirror_start request;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (atomic_xchg(&mirror->started, 1))
		return -EBUSY;
	insula_slots_write(mirror->slots, &process->arguments_size, request.arguments_size);
	insula_slots_write(mirror->slots, &process->descriptor, request.descriptor);
	insula_slots_write(mirror->slots, &process->slots, request.slots);
	insula_slots_write(mirror->slots, &process->ignored, request.ignored);
	insula_slots_write(mirror->slots, &process->blocked, request.blocked);
	insula_slots_write(mirror->slots, &process->running, request.running);
	insula_slots_start_process(mirror->slots, mirror->process);
	return insula_slots_disconnected(mirror->slots) ? -EPIPE : 0;
}

static int mirror_slot_alloc(struct insula_mirror *mirror)
{
	struct insula_syscall_slot *slot = insula_slots_alloc(mirror->slots, mirror->process);

	return IS_ERR(slot) ? PTR_ERR(slot) : slot->index;
}

static int mirror_slot_attach(struct insula_mirror *mirror, struct insula_syscall_slot *slot)
{
	int err = xa_err(xa_store(&mirror->attached, current->pid, slot, GFP_KERNEL));

	if (err)
		return err;
	err = insula_slot_attach(slot);
	if (err)
		xa_erase(&mirror->attached, current->pid);
	return err;
}

static int mirror_slot_free(struct insula_mirror *mirror, struct insula_syscall_slot *slot)
{
	xa_cmpxchg(&mirror->attached, current->pid, slot, NULL, 0);
	insula_slots_free(mirror->slots, slot);
	return 0;
}

/*
 * Make the calling process the proxy. -EBUSY if there is one. The call is restarted if a signal
 * comes, even one that only stops the process: Linux takes all locks of its memory here.
 */
static int mirror_adopt(struct insula_mirror *mirror)
{
	struct insula_lwk_process *process = insula_slots_process(mirror->slots, mirror->process);
	int err;

	mmgrab(current->mm);
	if (cmpxchg(&mirror->mm, NULL, current->mm)) {
		mmdrop(current->mm);
		return -EBUSY;
	}
	err = insula_base_mappings_follow(mirror);
	if (err) {
		WRITE_ONCE(mirror->mm, NULL);
		mmdrop(current->mm);
		return err == -EINTR ? -ERESTARTNOINTR : err;
	}
	insula_slots_write(mirror->slots, &process->pid, task_tgid_vnr(current));
	return 0;
}

/* The same of one that was created for another process, attaching the thread to its first slot. */
static int mirror_ioctl_adopt(struct insula_mirror *mirror)
{
	int err = mirror_adopt(mirror);

	return err ? err : mirror_slot_attach(mirror, mirror->first);
}

/*
 * Wait for a call. While the program's thread computes, its proxy thread waits here, and so
 * notices a stop. SIGCONT, which is caught and comes to insula_mirror_signal(), or a debugger
 * continues it.
 */
static int mirror_slot_wait(struct insula_mirror *mirror, struct insula_syscall_slot *slot)
{
	int err;

	if (READ_ONCE(mirror->stopped))
		insula_mirror_report_stopped(mirror);
	err = insula_slot_wait(slot);
	if (err == -EINTR)
		insula_mirror_report_stopped(mirror);
	return err;
}

/* The ioctls of a thread on a slot. */
static int mirror_slot_ioctl(struct insula_mirror *mirror, unsigned int command,
			     unsigned long index)
{
	struct insula_syscall_slot *slot = insula_slots_find(mirror->slots, mirror->process, index);

	if (!slot)
		return -EINVAL;
	switch (command) {
	case INSULA_MIRROR_SLOT_ATTACH:
		return mirror_slot_attach(mirror, slot);
	case INSULA_MIRROR_SLOT_FREE:
		return mirror_slot_free(mirror, slot);
	case INSULA_MIRROR_SLOT_WAIT:
		return mirror_slot_wait(mirror, slot);
	default:
		insula_slot_ring(slot);
		return 0;
	}
}

static long mirror_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct insula_mirror *mirror = file->private_data;

	if (command == INSULA_MIRROR_ADOPT)
		return mirror_ioctl_adopt(mirror);
	if (command == INSULA_MIRROR_LEAVE)
		return insula_mirror_leave(mirror, (void __user *)argument);
	if (current->mm != READ_ONCE(mirror->mm))
		return -EPERM;
	switch (command) {
	case INSULA_MIRROR_START:
		return mirror_ioctl_start(mirror, (void __user *)argument);
	case INSULA_MIRROR_SLOT_ALLOC:
		return mirror_slot_alloc(mirror);
	case INSULA_MIRROR_SIGNAL:
		return insula_mirror_signal(mirror, (void __user *)argument);
	case INSULA_MIRROR_INVALIDATE:
		return insula_mirror_invalidate(mirror, (void __user *)argument);
	case INSULA_MIRROR_MAP:
		return insula_mirror_map(file, (void __user *)argument);
	case INSULA_MIRROR_FAULT_IN:
		return insula_mirror_fault_in(mirror, (void __user *)argument);
	case INSULA_MIRROR_CLOSE_ON_EXEC:
		return insula_mirror_close_on_exec(file);
	case INSULA_MIRROR_FORK:
		return mirror_ioctl_fork(mirror, (void __user *)argument);
	case INSULA_MIRROR_SLOT_ATTACH:
	case INSULA_MIRROR_SLOT_FREE:
	case INSULA_MIRROR_SLOT_WAIT:
	case INSULA_MIRROR_SLOT_WAKE:
		return mirror_slot_ioctl(mirror, command, argument);
	default:
		return -ENOTTY;
	}
}

bool insula_mirror_is_vma(const struct vm_area_struct *vma)
{
	return vma->vm_file && vma->vm_file->f_op == &mirror_fops;
}

void insula_mirror_put(struct insula_mirror *mirror)
{
	if (refcount_dec_and_test(&mirror->users))
		queue_delayed_work(mirrors_queue, &mirror->quiesce_work, 0);
}

static int mirror_release(struct inode *inode, struct file *file)
{
	struct insula_mirror *mirror = file->private_data;

	down_write(&mirror->walk_lock);
	mirror->mapping = NULL;
	up_write(&mirror->walk_lock);
	insula_slots_exit_process(mirror->slots, mirror->process);
	insula_slots_await_stop(mirror->slots, mirror->process);
	insula_mirror_put(mirror);
	return 0;
}

static const struct file_operations mirror_fops = {
	.owner = THIS_MODULE,
	.mmap = insula_mirror_mmap,
	.unlocked_ioctl = mirror_ioctl,
	.release = mirror_release,
};

int insula_mirror_create(struct insula_slots *slots, void __user *argument)
{
	struct insula_mirror_create request;
	struct insula_mirror *mirror;
	int err = 0;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (request.flags & ~INSULA_MIRROR_CREATE_FOR_OTHER ||
	    !PAGE_ALIGNED(request.start | request.end) ||
	    request.start >= request.end || request.end > INSULA_MIRROR_SLOTS)
		return -EINVAL;
	if (!insula_slots_ready(slots))
		return -EAGAIN;
	mirror = mirror_create(slots, request.start, request.end, 0);
	if (IS_ERR(mirror))
		return PTR_ERR(mirror);
	if (!(request.flags & INSULA_MIRROR_CREATE_FOR_OTHER))
		err = mirror_adopt(mirror);
	request.slot = mirror->first->index;
	if (!err && copy_to_user(argument, &request, sizeof(request)))
		err = -EFAULT;
	return mirror_install(mirror, err);
}

int insula_mirrors_init(void)
{
	mirrors_queue = alloc_workqueue("insula_mirror", WQ_UNBOUND, 0);
	return mirrors_queue ? 0 : -ENOMEM;
}

void insula_mirrors_exit(void)
{
	destroy_workqueue(mirrors_queue);
}
