// SPDX-License-Identifier: GPL-2.0-only
/*
 * The address space of a program on a node, for its proxy: insula_lwk.h tells what for.
 * Here is how it begins and ends, and what the proxy asks of it; space_pages.c has what
 * is seen there.
 */
#include "insula_module.h"

#include <linux/bits.h>
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/jiffies.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/rwsem.h>
#include <linux/sched/jobctl.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>

#include "file.h"
#include "insula_lwk.h"
#include "space.h"

/*
 * How long a release waits for I/O that pins pages: most ends by then, and so its pages need
 * not be set aside. It waits once for each page.
 */
#define PINNED_WAIT_MS	2
/* How often it is looked whether the pages of a program that has ended are still held. */
#define LOOK_AGAIN_MS	10

/* How long a signal waits for room among those that the node has not taken. */
#define SIGNAL_WAIT_MS	1000

static struct workqueue_struct *spaces_queue;
static const struct file_operations space_fops;

static struct insula_space *space_of(struct insula_desks_user *user)
{
	return container_of(user, struct insula_space, user);
}

/* The node is no more: nothing of it is shown any more. */
static void hung_up(struct insula_desks_user *user)
{
	struct insula_space *space = space_of(user);

	down_write(&space->walking);
	if (space->mapping)
		unmap_mapping_range(space->mapping, 0, 0, 1);
	up_write(&space->walking);
}

static void free_space(struct insula_space *space)
{
	insula_program_pages_destroy(&space->pages);
	xa_destroy(&space->seats);
	if (space->mm)
		mmdrop(space->mm);
	insula_desks_put(space->desks);
	kfree(space);
}

/* Nothing maps it any more. The program's kernel hears so when nobody holds a page either. */
static void let_go(struct work_struct *work)
{
	struct insula_space *space = container_of(to_delayed_work(work), struct insula_space,
						  let_go);
	bool pinned;

	mutex_lock(&space->releasing);
	insula_program_pages_unmapped(&space->pages, space->start, space->end);
	pinned = insula_program_pages_pinned(&space->pages, NULL, 0, 0);
	mutex_unlock(&space->releasing);
	if (pinned && !insula_desks_gone(space->desks)) {
		queue_delayed_work(spaces_queue, &space->let_go,
				   msecs_to_jiffies(LOOK_AGAIN_MS));
		return;
	}
	insula_desks_drop_process(space->desks, space->process, &space->user);
	free_space(space);
}

/* For a proxy that is still to come. */
static struct insula_space *new_space(struct insula_desks *desks, u64 start, u64 end)
{
	struct insula_space *space = kzalloc(sizeof(*space), GFP_KERNEL);

	if (!space)
		return NULL;
	space->desks = desks;
	insula_desks_get(desks);
	space->start = start;
	space->end = end;
	init_rwsem(&space->walking);
	mutex_init(&space->releasing);
	mutex_init(&space->release);
	mutex_init(&space->stopping);
	insula_program_pages_init(&space->pages);
	xa_init(&space->seats);
	space->user.hung_up = hung_up;
	INIT_DELAYED_WORK(&space->let_go, let_go);
	return space;
}

/* Its pages in the area, and the first desk. `parent`: the process it is a copy of, or 0. */
static int settle(struct insula_space *space, u32 parent)
{
	struct insula_lwk_process *process;
	struct insula_seat *seat;
	int page = insula_desks_add_process(space->desks, &space->user);

	if (page < 0)
		return page;
	space->process = page;
	seat = insula_desks_take_seat(space->desks, page);
	if (IS_ERR(seat)) {
		insula_desks_drop_process(space->desks, page, &space->user);
		return PTR_ERR(seat);
	}
	process = insula_desks_process(space->desks, page);
	space->first = seat;
	insula_desks_write(space->desks, &process->desk, seat->index);
	insula_desks_write(space->desks, &process->parent, parent);
	insula_desks_write(space->desks, &process->space_start, space->start);
	insula_desks_write(space->desks, &process->space_end, space->end);
	return 0;
}

/* A space on a node, with nobody who maps it. */
static struct insula_space *create(struct insula_desks *desks, u64 start, u64 end, u32 parent)
{
	struct insula_space *space = new_space(desks, start, end);
	int err;

	if (!space)
		return ERR_PTR(-ENOMEM);
	err = settle(space, parent);
	if (!err)
		return space;
	free_space(space);
	return ERR_PTR(err);
}

/* Its descriptor, whose release undoes all. `err`: there is to be none. */
static int install(struct insula_space *space, int err)
{
	struct file *file = err ? ERR_PTR(err) :
			    insula_file_create("[insula-space]", &space_fops, space);

	if (IS_ERR(file)) {
		insula_desks_end_process(space->desks, space->process);
		insula_desks_drop_process(space->desks, space->process, &space->user);
		free_space(space);
		return PTR_ERR(file);
	}
	space->mapping = file->f_mapping;
	return insula_file_install(file);
}

static int ioctl_fork(struct insula_space *parent, void __user *argument)
{
	struct insula_space_fork answer;
	struct insula_space *space;

	space = create(parent->desks, parent->start, parent->end, parent->process);
	if (IS_ERR(space))
		return PTR_ERR(space);
	answer.desk = space->first->index;
	answer.process = space->process;
	return install(space, copy_to_user(argument, &answer, sizeof(answer)) ? -EFAULT : 0);
}

/* What a space, and those of the same memory, are to let go of. */
struct letting_go {
	const struct insula_space_range *range;
	bool give_up;		/* nobody waits any longer */
	bool fresh;		/* a page is pinned for which nobody has waited yet */
	u64 *pinned;		/* frames that are; as many as there is room for */
	u64 count;		/* all of them */
};

static void unmap(struct insula_desks_user *user, void *data)
{
	struct insula_space *space = space_of(user);
	struct letting_go *letting_go = data;
	const struct insula_space_range *range = letting_go->range;

	mutex_lock(&space->releasing);
	down_write(&space->walking);
	if (space->mapping)
		unmap_mapping_range(space->mapping, range->start, range->size, 1);
	insula_program_pages_unmapped(&space->pages, range->start, range->start + range->size);
	up_write(&space->walking);
	mutex_unlock(&space->releasing);
}

/* None of these pages is being mapped meanwhile, which would be taken for pinning it. */
static void await(struct insula_desks_user *user, void *data)
{
	struct insula_space *space = space_of(user);
	struct letting_go *letting_go = data;

	mutex_lock(&space->releasing);
	down_write(&space->walking);
	if (insula_program_pages_await(&space->pages, letting_go->give_up))
		letting_go->fresh = true;
	up_write(&space->walking);
	mutex_unlock(&space->releasing);
}

static void list_pinned(struct insula_desks_user *user, void *data)
{
	struct insula_space *space = space_of(user);
	struct letting_go *letting_go = data;

	mutex_lock(&space->releasing);
	down_write(&space->walking);
	letting_go->count = insula_program_pages_pinned(&space->pages, letting_go->pinned,
							letting_go->count, INSULA_LWK_PINNED_MAX);
	up_write(&space->walking);
	mutex_unlock(&space->releasing);
}

/* Wait a while until nothing pins a page that was mapped, by this space or one of its kin. */
static void wait_for_pinned(struct insula_space *space, struct letting_go *letting_go)
{
	ktime_t limit = ktime_add_ms(ktime_get(), PINNED_WAIT_MS);

	do {
		letting_go->give_up = ktime_after(ktime_get(), limit) ||
				      fatal_signal_pending(current);
		letting_go->fresh = false;
		insula_desks_each_kin(space->desks, space->process, await, letting_go);
		if (letting_go->fresh)
			usleep_range(50, 200);
	} while (letting_go->fresh);
}

/* Tell the program's kernel what is pinned, and last that it has been told. */
static void tell(struct insula_space *space, const struct letting_go *letting_go, u64 ticket)
{
	struct insula_lwk_process *process = insula_desks_process(space->desks, space->process);
	u64 i;

	for (i = 0; i < min_t(u64, letting_go->count, INSULA_LWK_PINNED_MAX); i++)
		insula_desks_write(space->desks, &process->pinned[i], letting_go->pinned[i]);
	insula_desks_write(space->desks, &process->pinned_count, letting_go->count);
	insula_desks_write(space->desks, &process->released, ticket);
}

static int release_range(struct insula_space *space, const struct insula_space_range *range)
{
	struct letting_go letting_go = { .range = range, .pinned = space->pinned };

	if (mutex_lock_killable(&space->release))
		return -EINTR;
	insula_desks_each_kin(space->desks, space->process, unmap, &letting_go);
	if (!(range->flags & INSULA_LWK_RELEASE_MAPPED))
		wait_for_pinned(space, &letting_go);
	insula_desks_each_kin(space->desks, space->process, list_pinned, &letting_go);
	tell(space, &letting_go, range->ticket);
	mutex_unlock(&space->release);
	return 0;
}

static int ioctl_release(struct insula_space *space, void __user *argument)
{
	struct insula_space_range range;

	if (copy_from_user(&range, argument, sizeof(range)))
		return -EFAULT;
	if (range.flags & ~INSULA_LWK_RELEASE_MAPPED || !range.size ||
	    !PAGE_ALIGNED(range.start | range.size) || range.start < space->start ||
	    range.start > space->end || range.size > space->end - range.start)
		return -EINVAL;
	return release_range(space, &range);
}

static int ioctl_begin(struct insula_space *space, void __user *argument)
{
	struct insula_lwk_process *process = insula_desks_process(space->desks, space->process);
	struct insula_space_begin begin;

	if (copy_from_user(&begin, argument, sizeof(begin)))
		return -EFAULT;
	if (atomic_xchg(&space->begun, 1))
		return -EBUSY;
	insula_desks_write(space->desks, &process->arguments_size, begin.arguments_size);
	insula_desks_write(space->desks, &process->descriptor, begin.descriptor);
	insula_desks_write(space->desks, &process->desks, begin.desks);
	insula_desks_write(space->desks, &process->ignored, begin.ignored);
	insula_desks_write(space->desks, &process->blocked, begin.blocked);
	insula_desks_begin_process(space->desks, space->process);
	return insula_desks_gone(space->desks) ? -EPIPE : 0;
}

static int take_desk(struct insula_space *space)
{
	struct insula_seat *seat = insula_desks_take_seat(space->desks, space->process);

	return IS_ERR(seat) ? PTR_ERR(seat) : seat->index;
}

static int sit(struct insula_space *space, struct insula_seat *seat)
{
	int err = xa_err(xa_store(&space->seats, current->pid, seat, GFP_KERNEL));

	if (err)
		return err;
	err = insula_seat_sit(seat);
	if (err)
		xa_erase(&space->seats, current->pid);
	return err;
}

static int leave(struct insula_space *space, struct insula_seat *seat)
{
	xa_cmpxchg(&space->seats, current->pid, seat, NULL, 0);
	insula_desks_leave_seat(space->desks, seat);
	return 0;
}

/* The calling process is the proxy from now on, if there is none yet. */
static int adopt(struct insula_space *space)
{
	struct insula_lwk_process *process = insula_desks_process(space->desks, space->process);

	mmgrab(current->mm);
	if (cmpxchg(&space->mm, NULL, current->mm)) {
		mmdrop(current->mm);
		return -EBUSY;
	}
	insula_desks_write(space->desks, &process->pid, task_tgid_vnr(current));
	return 0;
}

/* The same of a copy, with the calling thread at its first desk. */
static int ioctl_adopt(struct insula_space *space)
{
	int err = adopt(space);

	return err ? err : sit(space, space->first);
}

/* Whether the calling thread is about to be stopped, also by what nobody can catch. */
static bool is_to_stop(void)
{
	bool is_to_stop;

	spin_lock_irq(&current->sighand->siglock);
	is_to_stop = current->jobctl & JOBCTL_STOP_PENDING ||
		     sigismember(&current->pending.signal, SIGSTOP) ||
		     sigismember(&current->signal->shared_pending.signal, SIGSTOP);
	spin_unlock_irq(&current->sighand->siglock);
	return is_to_stop;
}

/*
 * Tell the program's kernel whether the program is stopped, if that is news: of SIGSTOP no
 * thread of the proxy hears, and those of the program would compute on. Looking and telling
 * are one step, so that the last who looks is the last who tells.
 */
static void tell_whether_stopped(struct insula_space *space)
{
	struct insula_lwk_process *process = insula_desks_process(space->desks, space->process);
	bool stopped;

	mutex_lock(&space->stopping);
	stopped = is_to_stop();
	if (stopped != space->stopped) {
		WRITE_ONCE(space->stopped, stopped);
		insula_desks_write(space->desks, &process->stopped, stopped);
		insula_desks_call_attention(space->desks, space->process);
	}
	mutex_unlock(&space->stopping);
}

/*
 * Wait for a turn. Whose thread of the program computes waits here, and so hears that it is to
 * stop. It goes on by SIGCONT, which is caught and comes to ioctl_signal(), or by a debugger.
 */
static int wait_for_turn(struct insula_space *space, struct insula_seat *seat)
{
	int err;

	if (READ_ONCE(space->stopped))
		tell_whether_stopped(space);
	err = insula_seat_wait(seat);
	if (err == -EINTR)
		tell_whether_stopped(space);
	return err;
}

/*
 * A signal for the program, with what is known of it. If its queue stays full, since nobody
 * takes what is in it, no more than the signal's number goes on.
 */
static int ioctl_signal(struct insula_space *space, void __user *argument)
{
	ktime_t limit = ktime_add_ms(ktime_get(), SIGNAL_WAIT_MS);
	struct insula_space_signal came;
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
	if (READ_ONCE(space->stopped))
		tell_whether_stopped(space);
	while (!insula_desks_signal(space->desks, space->process, &signal,
				    ktime_after(ktime_get(), limit))) {
		insula_desks_call_attention(space->desks, space->process);
		if (fatal_signal_pending(current))
			return -EINTR;
		usleep_range(50, 200);
	}
	insula_desks_call_attention(space->desks, space->process);
	return insula_desks_gone(space->desks) ? -EPIPE : 0;
}

/* The calls of a thread about a desk. */
static int at_desk(struct insula_space *space, unsigned int command, unsigned long desk)
{
	struct insula_seat *seat = insula_desks_seat(space->desks, space->process, desk);

	if (!seat)
		return -EINVAL;
	switch (command) {
	case INSULA_SPACE_SIT:
		return sit(space, seat);
	case INSULA_SPACE_LEAVE:
		return leave(space, seat);
	case INSULA_SPACE_WAIT:
		return wait_for_turn(space, seat);
	default:
		insula_seat_ring(seat);
		return 0;
	}
}

static long space_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct insula_space *space = file->private_data;

	if (command == INSULA_SPACE_ADOPT)
		return ioctl_adopt(space);
	if (current->mm != READ_ONCE(space->mm))
		return -EPERM;
	switch (command) {
	case INSULA_SPACE_BEGIN:
		return ioctl_begin(space, (void __user *)argument);
	case INSULA_SPACE_DESK:
		return take_desk(space);
	case INSULA_SPACE_SIGNAL:
		return ioctl_signal(space, (void __user *)argument);
	case INSULA_SPACE_RELEASE:
		return ioctl_release(space, (void __user *)argument);
	case INSULA_SPACE_FORK:
		return ioctl_fork(space, (void __user *)argument);
	case INSULA_SPACE_SIT:
	case INSULA_SPACE_LEAVE:
	case INSULA_SPACE_WAIT:
	case INSULA_SPACE_RING:
		return at_desk(space, command, argument);
	default:
		return -ENOTTY;
	}
}

static int space_release(struct inode *inode, struct file *file)
{
	struct insula_space *space = file->private_data;

	down_write(&space->walking);
	space->mapping = NULL;
	up_write(&space->walking);
	insula_desks_end_process(space->desks, space->process);
	queue_delayed_work(spaces_queue, &space->let_go, 0);
	return 0;
}

static const struct file_operations space_fops = {
	.owner = THIS_MODULE,
	.mmap = insula_space_mmap,
	.unlocked_ioctl = space_ioctl,
	.release = space_release,
};

int insula_space_create(struct insula_desks *desks, void __user *argument)
{
	struct insula_space_create request;
	struct insula_space *space;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (request.flags || !PAGE_ALIGNED(request.start | request.end) ||
	    request.start >= request.end || request.end > INSULA_SPACE_DESKS)
		return -EINVAL;
	if (!insula_desks_ready(desks))
		return -EAGAIN;
	space = create(desks, request.start, request.end, 0);
	if (IS_ERR(space))
		return PTR_ERR(space);
	adopt(space);
	request.desk = space->first->index;
	return install(space, copy_to_user(argument, &request, sizeof(request)) ? -EFAULT : 0);
}

int insula_spaces_init(void)
{
	spaces_queue = alloc_workqueue("insula-spaces", WQ_UNBOUND, 0);
	return spaces_queue ? 0 : -ENOMEM;
}

void insula_spaces_exit(void)
{
	destroy_workqueue(spaces_queue);
}
