/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_VIRTIO_BUS_H
#define INSULA_VIRTIO_BUS_H

#include <linux/types.h>

#include "insula_virtio.h"

/* Bus: the channel to the base shared by a node's virtio devices. */
struct insula_bus;

/* A message: header and body. */
struct insula_virtio_message {
	struct insula_virtio_header header;
	u8 body[INSULA_VIRTIO_MESSAGE_MAX - sizeof(struct insula_virtio_header)];
};

/*
 * Send a request with `size` bytes of body; token and size of its header are filled in, and the
 * response overwrites it. Returns the size of the response's body. -EPIPE: the base has left.
 * -ETIMEDOUT. -EPROTO: malformed response. Sleeps.
 */
int insula_bus_request(struct insula_bus *bus, struct insula_virtio_message *message, u32 size);

/* Signal one of the base's events. In any context. */
void insula_bus_signal(struct insula_bus *bus, u32 event);

#endif
