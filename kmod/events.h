/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_EVENTS_H
#define INSULA_EVENTS_H

#include <linux/types.h>

#include "insula.h"

/* The eventfds of one who rings and is rung. */
struct insula_events;

/*
 * Of these descriptors, -1 for none: ring(context) is called when one is signalled, in
 * whatever context. NULL if there are none. ERR_PTR(-EBADF), ERR_PTR(-EINVAL): no eventfd.
 */
struct insula_events *insula_events_create(const struct insula_channel_events *descriptors,
					   void (*ring)(void *context), void *context);

/* When this returns ring() is called no more, and nobody may signal. NULL is none. Sleeps. */
void insula_events_destroy(struct insula_events *events);

/* It has been rung. Any context. */
void insula_events_signal(struct insula_events *events);

#endif
