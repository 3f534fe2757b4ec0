// SPDX-License-Identifier: GPL-2.0-only
/*
 * Events of channels as eventfds.
 *
 * A binding is found by who is rung under the table's lock, so it is taken out of the
 * table before it is undone. Of both eventfds it has an entry in their wait queues, which
 * are woken under those queues' locks: once the entry has been removed nobody is in it.
 *
 * What the peer signals is written to its eventfd's context, which outlives the files: so
 * the last file of it that goes, here or in a back end, is seen.
 */
#include "event.h"

#include <linux/err.h>
#include <linux/eventfd.h>
#include <linux/file.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/wait.h>

#include "compat/eventfd.h"

/* An eventfd whose wait queue we are in. */
struct watched {
	struct eventfd_ctx *context;	/* or NULL */
	wait_queue_entry_t wait;
	poll_table poll;
};

struct insula_binding {
	struct insula_bindings *bindings;
	u32 event;
	struct watched in;		/* what the peer signals */
	struct watched out;		/* to be signalled to the peer */
	struct file *out_file;		/* held, so that it can be waited for */
	bool let_go;			/* `in` has no file any more */
};

void insula_bindings_init(struct insula_bindings *bindings)
{
	spin_lock_init(&bindings->lock);
}

/* `out` was written to. In any context. */
static int written(wait_queue_entry_t *wait, unsigned int mode, int sync, void *key)
{
	struct insula_binding *binding = container_of(wait, struct insula_binding, out.wait);
	u64 count;

	if (!(key_to_poll(key) & EPOLLIN))
		return 0;
	eventfd_ctx_do_read(binding->out.context, &count);
	binding->bindings->signal(binding->bindings, binding->event);
	return 1;
}

/* Something happened to `in`: of interest is only that its last file goes. In any context. */
static int let_go(wait_queue_entry_t *wait, unsigned int mode, int sync, void *key)
{
	struct insula_binding *binding = container_of(wait, struct insula_binding, in.wait);

	if (key_to_poll(key) & EPOLLHUP) {
		WRITE_ONCE(binding->let_go, true);
		binding->bindings->let_go(binding->bindings);
	}
	return 0;
}

static void add_to_queue(struct file *file, wait_queue_head_t *queue, poll_table *poll)
{
	struct watched *watched = container_of(poll, struct watched, poll);

	add_wait_queue(queue, &watched->wait);
}

/* The file of an eventfd that is watched from now on. */
static struct file *watch(struct watched *watched, int fd, wait_queue_func_t woken)
{
	struct file *file = eventfd_fget(fd);

	if (IS_ERR(file))
		return file;
	watched->context = eventfd_ctx_fileget(file);
	init_waitqueue_func_entry(&watched->wait, woken);
	init_poll_funcptr(&watched->poll, add_to_queue);
	return file;
}

static void unwatch(struct watched *watched)
{
	u64 count;

	if (!watched->context)
		return;
	eventfd_ctx_remove_wait_queue(watched->context, &watched->wait, &count);
	eventfd_ctx_put(watched->context);
	watched->context = NULL;
}

/* Nothing is signalled to the peer by it any more. */
static void silence(struct insula_binding *binding)
{
	unwatch(&binding->out);
	if (binding->out_file)
		fput(binding->out_file);
	binding->out_file = NULL;
}

static void undo(struct insula_binding *binding)
{
	if (!binding)
		return;
	unwatch(&binding->in);
	silence(binding);
	kfree(binding);
}

static struct insula_binding *replace(struct insula_bindings *bindings, u32 event,
				      struct insula_binding *binding)
{
	unsigned long flags;

	spin_lock_irqsave(&bindings->lock, flags);
	swap(bindings->of[event], binding);
	spin_unlock_irqrestore(&bindings->lock, flags);
	return binding;
}

static int watch_in(struct insula_binding *binding, int fd)
{
	struct file *file = watch(&binding->in, fd, let_go);

	if (IS_ERR(file))
		return PTR_ERR(file);
	vfs_poll(file, &binding->in.poll);
	fput(file);
	return 0;
}

/* What was written to it before counts. */
static int watch_out(struct insula_binding *binding, int fd)
{
	struct file *file = watch(&binding->out, fd, written);

	if (IS_ERR(file))
		return PTR_ERR(file);
	binding->out_file = file;
	if (vfs_poll(file, &binding->out.poll) & EPOLLIN)
		binding->bindings->signal(binding->bindings, binding->event);
	return 0;
}

static struct insula_binding *make(struct insula_bindings *bindings,
				   const struct insula_channel_event *request)
{
	struct insula_binding *binding = kzalloc(sizeof(*binding), GFP_KERNEL);
	int err = 0;

	if (!binding)
		return ERR_PTR(-ENOMEM);
	binding->bindings = bindings;
	binding->event = request->event;
	if (request->incoming >= 0)
		err = watch_in(binding, request->incoming);
	if (!err && request->outgoing >= 0)
		err = watch_out(binding, request->outgoing);
	if (!err)
		return binding;
	undo(binding);
	return ERR_PTR(err);
}

int insula_bindings_bind(struct insula_bindings *bindings,
			 const struct insula_channel_event *request)
{
	struct insula_binding *binding = NULL;

	if (request->event >= INSULA_EVENTS || request->reserved)
		return -EINVAL;
	if (request->incoming >= 0 || request->outgoing >= 0) {
		binding = make(bindings, request);
		if (IS_ERR(binding))
			return PTR_ERR(binding);
	}
	undo(replace(bindings, request->event, binding));
	return 0;
}

bool insula_bindings_held(struct insula_bindings *bindings)
{
	const struct insula_binding *binding;
	unsigned long flags;
	bool held = false;
	u32 i;

	spin_lock_irqsave(&bindings->lock, flags);
	for (i = 0; i < INSULA_EVENTS && !held; i++) {
		binding = bindings->of[i];
		held = binding && binding->in.context && !READ_ONCE(binding->let_go);
	}
	spin_unlock_irqrestore(&bindings->lock, flags);
	return held;
}

void insula_bindings_silence(struct insula_bindings *bindings)
{
	u32 i;

	for (i = 0; i < INSULA_EVENTS; i++)
		if (bindings->of[i])
			silence(bindings->of[i]);
}

void insula_bindings_clear(struct insula_bindings *bindings)
{
	u32 i;

	for (i = 0; i < INSULA_EVENTS; i++)
		undo(replace(bindings, i, NULL));
}

void insula_bindings_signalled(struct insula_bindings *bindings, u64 events)
{
	unsigned long flags;
	u32 i;

	spin_lock_irqsave(&bindings->lock, flags);
	for (i = 0; i < INSULA_EVENTS; i++)
		if (events & BIT_ULL(i) && bindings->of[i] && bindings->of[i]->in.context)
			insula_eventfd_signal(bindings->of[i]->in.context);
	spin_unlock_irqrestore(&bindings->lock, flags);
}
