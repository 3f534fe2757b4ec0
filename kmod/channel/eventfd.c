// SPDX-License-Identifier: GPL-2.0-only
/*
 * Events of channels bound to eventfds, as KVM's ioeventfd and irqfd.
 *
 * The doorbell's handler finds a binding under the table's lock, so a binding is removed from
 * the table before it is freed. It has an entry in the wait queues of both eventfds, whose
 * callbacks run under those queues' locks: after removal of the entry none is running.
 *
 * A binding holds the context of its ioeventfd, not a file: so it notices when the last file
 * of the eventfd is closed, here or in a back end.
 */
#include "channel/eventfd.h"

#include <linux/err.h>
#include <linux/eventfd.h>
#include <linux/file.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/wait.h>

#include "channel/endpoint.h"
#include "channel/endpoint_file.h"
#include "channel/session.h"
#include "compat/eventfd.h"

/* An eventfd with an entry of ours in its wait queue. */
struct polled {
	struct eventfd_ctx *context;	/* or NULL */
	wait_queue_entry_t wait;
	poll_table poll;
};

struct insula_eventfd {
	struct insula_endpoint *endpoint;
	u32 event;
	struct polled ioeventfd;	/* written when the peer signals the event */
	struct polled irqfd;		/* signals the event to the peer when written */
	struct file *irqfd_file;	/* held while it is polled */
	bool released;			/* the last file of `ioeventfd` was closed */
};

void insula_eventfds_init(struct insula_endpoint *endpoint)
{
	spin_lock_init(&endpoint->eventfds.lock);
}

/* The irqfd was written. In any context. */
static int irqfd_written(wait_queue_entry_t *wait, unsigned int mode, int sync, void *key)
{
	struct insula_eventfd *binding = container_of(wait, struct insula_eventfd,
							      irqfd.wait);
	u64 count;

	if (!(key_to_poll(key) & EPOLLIN))
		return 0;
	eventfd_ctx_do_read(binding->irqfd.context, &count);
	insula_session_signal(binding->endpoint, binding->event);
	return 1;
}

/* The ioeventfd was woken: of interest is only the close of its last file. In any context. */
static int ioeventfd_woken(wait_queue_entry_t *wait, unsigned int mode, int sync, void *key)
{
	struct insula_eventfd *binding = container_of(wait, struct insula_eventfd,
							      ioeventfd.wait);

	if (key_to_poll(key) & EPOLLHUP) {
		WRITE_ONCE(binding->released, true);
		insula_endpoint_file_eventfd_released(binding->endpoint);
	}
	return 0;
}

static void eventfd_poll_queue_proc(struct file *file, wait_queue_head_t *queue, poll_table *poll)
{
	struct polled *polled = container_of(poll, struct polled, poll);

	add_wait_queue(queue, &polled->wait);
}

/* Start polling an eventfd. Returns its file, referenced. */
static struct file *eventfd_poll_add(struct polled *polled, int fd, wait_queue_func_t wake_func)
{
	struct file *file = eventfd_fget(fd);

	if (IS_ERR(file))
		return file;
	polled->context = eventfd_ctx_fileget(file);
	init_waitqueue_func_entry(&polled->wait, wake_func);
	init_poll_funcptr(&polled->poll, eventfd_poll_queue_proc);
	return file;
}

static void eventfd_poll_remove(struct polled *polled)
{
	u64 count;

	if (!polled->context)
		return;
	eventfd_ctx_remove_wait_queue(polled->context, &polled->wait, &count);
	eventfd_ctx_put(polled->context);
	polled->context = NULL;
}

/* Stop signalling the peer. */
static void irqfd_disable(struct insula_eventfd *binding)
{
	eventfd_poll_remove(&binding->irqfd);
	if (binding->irqfd_file)
		fput(binding->irqfd_file);
	binding->irqfd_file = NULL;
}

static void eventfd_binding_free(struct insula_eventfd *binding)
{
	if (!binding)
		return;
	eventfd_poll_remove(&binding->ioeventfd);
	irqfd_disable(binding);
	kfree(binding);
}

static struct insula_eventfd *eventfd_binding_replace(struct insula_endpoint *endpoint,
						      u32 event,
						      struct insula_eventfd *binding)
{
	unsigned long flags;

	spin_lock_irqsave(&endpoint->eventfds.lock, flags);
	swap(endpoint->eventfds.of[event], binding);
	spin_unlock_irqrestore(&endpoint->eventfds.lock, flags);
	return binding;
}

static int ioeventfd_bind(struct insula_eventfd *binding, int fd)
{
	struct file *file = eventfd_poll_add(&binding->ioeventfd, fd, ioeventfd_woken);

	if (IS_ERR(file))
		return PTR_ERR(file);
	vfs_poll(file, &binding->ioeventfd.poll);
	fput(file);
	return 0;
}

/* A value written before is signalled at once. */
static int irqfd_bind(struct insula_eventfd *binding, int fd)
{
	struct file *file = eventfd_poll_add(&binding->irqfd, fd, irqfd_written);

	if (IS_ERR(file))
		return PTR_ERR(file);
	binding->irqfd_file = file;
	if (vfs_poll(file, &binding->irqfd.poll) & EPOLLIN)
		insula_session_signal(binding->endpoint, binding->event);
	return 0;
}

static struct insula_eventfd *eventfd_binding_new(struct insula_endpoint *endpoint,
						  const struct insula_channel_eventfd *request)
{
	struct insula_eventfd *binding = kzalloc(sizeof(*binding), GFP_KERNEL);
	int err = 0;

	if (!binding)
		return ERR_PTR(-ENOMEM);
	binding->endpoint = endpoint;
	binding->event = request->event;
	if (request->ioeventfd >= 0)
		err = ioeventfd_bind(binding, request->ioeventfd);
	if (!err && request->irqfd >= 0)
		err = irqfd_bind(binding, request->irqfd);
	if (!err)
		return binding;
	eventfd_binding_free(binding);
	return ERR_PTR(err);
}

int insula_eventfds_bind(struct insula_endpoint *endpoint,
			 const struct insula_channel_eventfd *request)
{
	struct insula_eventfd *binding = NULL;

	if (request->event >= INSULA_EVENTS || request->reserved)
		return -EINVAL;
	if (request->ioeventfd >= 0 || request->irqfd >= 0) {
		binding = eventfd_binding_new(endpoint, request);
		if (IS_ERR(binding))
			return PTR_ERR(binding);
	}
	eventfd_binding_free(eventfd_binding_replace(endpoint, request->event, binding));
	return 0;
}

bool insula_eventfds_in_use(struct insula_endpoint *endpoint)
{
	const struct insula_eventfd *binding;
	unsigned long flags;
	bool in_use = false;
	u32 i;

	spin_lock_irqsave(&endpoint->eventfds.lock, flags);
	for (i = 0; i < INSULA_EVENTS && !in_use; i++) {
		binding = endpoint->eventfds.of[i];
		in_use = binding && binding->ioeventfd.context && !READ_ONCE(binding->released);
	}
	spin_unlock_irqrestore(&endpoint->eventfds.lock, flags);
	return in_use;
}

void insula_eventfds_disable_irqfds(struct insula_endpoint *endpoint)
{
	u32 i;

	for (i = 0; i < INSULA_EVENTS; i++)
		if (endpoint->eventfds.of[i])
			irqfd_disable(endpoint->eventfds.of[i]);
}

void insula_eventfds_clear(struct insula_endpoint *endpoint)
{
	u32 i;

	for (i = 0; i < INSULA_EVENTS; i++)
		eventfd_binding_free(eventfd_binding_replace(endpoint, i, NULL));
}

void insula_eventfds_signal(struct insula_endpoint *endpoint, u64 events)
{
	const struct insula_eventfd *binding;
	unsigned long flags;
	u32 i;

	spin_lock_irqsave(&endpoint->eventfds.lock, flags);
	for (i = 0; i < INSULA_EVENTS; i++) {
		binding = endpoint->eventfds.of[i];
		if (events & BIT_ULL(i) && binding && binding->ioeventfd.context)
			insula_eventfd_signal(binding->ioeventfd.context);
	}
	spin_unlock_irqrestore(&endpoint->eventfds.lock, flags);
}
