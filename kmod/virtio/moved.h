/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_MOVED_H
#define INSULA_MOVED_H

#include <linux/types.h>

struct insula_virtio;

/* Whether a device in use can go on in a copy of the node; others are removed and added again. */
bool insula_moved_can_wait(const struct insula_virtio *device);

/* Whether it can go on now: a network card has to have the address that the base has given it. */
bool insula_moved_has_address(struct insula_virtio *device);

/*
 * Prepare its queues and its driver, when the base knows the queues and does not serve them yet.
 * -EPROTO, -ETIMEDOUT: the driver is in another state than expected.
 */
int insula_moved_prepare(struct insula_virtio *device);

#endif
