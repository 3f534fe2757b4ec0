// SPDX-License-Identifier: GPL-2.0-only
/*
 * Doorbells as eventfds, which vhost and io_uring know: one is signalled when we are
 * rung; who signals the other rings our peer, without a system call of ours.
 */
#include "events.h"

#include <linux/err.h>
#include <linux/eventfd.h>
#include <linux/file.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/wait.h>

#include "compat/compat.h"

struct insula_events {
	struct eventfd_ctx *rung;	/* or NULL */
	struct eventfd_ctx *bell;	/* or NULL */
	wait_queue_entry_t entry;	/* with the bell */
	poll_table table;
	void (*ring)(void *context);
	void *context;
};

/* With the eventfd locked. It is emptied, so that it can be signalled for ever. */
static int signalled(wait_queue_entry_t *entry, unsigned int mode, int sync, void *key)
{
	struct insula_events *events = container_of(entry, struct insula_events, entry);
	u64 count;

	if (key_to_poll(key) & EPOLLIN) {
		eventfd_ctx_do_read(events->bell, &count);
		events->ring(events->context);
	}
	return 0;
}

static void attach(struct file *file, wait_queue_head_t *head, poll_table *table)
{
	add_wait_queue(head, &container_of(table, struct insula_events, table)->entry);
}

static int listen(struct insula_events *events, int fd)
{
	struct file *file = eventfd_fget(fd);

	if (IS_ERR(file))
		return PTR_ERR(file);
	events->bell = eventfd_ctx_fileget(file);
	init_waitqueue_func_entry(&events->entry, signalled);
	init_poll_funcptr(&events->table, attach);
	if (vfs_poll(file, &events->table) & EPOLLIN)
		events->ring(events->context);
	fput(file);
	return 0;
}

static int open_both(struct insula_events *events, const struct insula_channel_events *descriptors)
{
	struct eventfd_ctx *rung;

	if (descriptors->rung != -1) {
		rung = eventfd_ctx_fdget(descriptors->rung);
		if (IS_ERR(rung))
			return PTR_ERR(rung);
		events->rung = rung;
	}
	return descriptors->bell == -1 ? 0 : listen(events, descriptors->bell);
}

struct insula_events *insula_events_create(const struct insula_channel_events *descriptors,
					   void (*ring)(void *context), void *context)
{
	struct insula_events *events;
	int err;

	if (descriptors->rung == -1 && descriptors->bell == -1)
		return NULL;
	events = kzalloc(sizeof(*events), GFP_KERNEL);
	if (!events)
		return ERR_PTR(-ENOMEM);
	events->ring = ring;
	events->context = context;
	err = open_both(events, descriptors);
	if (!err)
		return events;
	insula_events_destroy(events);
	return ERR_PTR(err);
}

void insula_events_destroy(struct insula_events *events)
{
	u64 count;

	if (!events)
		return;
	if (events->bell) {
		eventfd_ctx_remove_wait_queue(events->bell, &events->entry, &count);
		eventfd_ctx_put(events->bell);
	}
	if (events->rung)
		eventfd_ctx_put(events->rung);
	kfree(events);
}

void insula_events_signal(struct insula_events *events)
{
	if (events->rung)
		insula_eventfd_signal(events->rung);
}
