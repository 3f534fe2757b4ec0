/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_VIRTIO_BUS_H
#define INSULA_VIRTIO_BUS_H

#include <linux/types.h>

#include "insula_virtio.h"

/* The channel to the base that a node's virtio devices share. */
struct insula_bus;

/* A message with what follows its header. */
struct insula_virtio_message {
	struct insula_virtio_header header;
	u8 body[INSULA_VIRTIO_MESSAGE_MAX - sizeof(struct insula_virtio_header)];
};

/*
 * Send a request, whose header needs no token and no size, with `size` bytes of body; the
 * answer overwrites it. Answers how many bytes of body that has; -EPIPE when the base has
 * left, -ETIMEDOUT when it does not answer, -EPROTO when it answers nonsense. Sleeps.
 */
int insula_bus_ask(struct insula_bus *bus, struct insula_virtio_message *message, u32 size);

/* Signal one of the base's events. In any context. */
void insula_bus_signal(struct insula_bus *bus, u32 event);

#endif
