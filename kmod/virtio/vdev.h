/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_VDEV_H
#define INSULA_VDEV_H

#include <linux/refcount.h>
#include <linux/smp.h>
#include <linux/spinlock.h>
#include <linux/virtio.h>

#include "virtio/bus.h"
#include "virtio/device.h"

/* A place for a virtqueue of a device. */
struct insula_vqueue {
	struct virtqueue *queue;	/* or NULL: the doorbell's handler does not see it */
	struct insula_virtio *device;
	u32 event;			/* bit of the channel */
	int cpu;			/* where its driver wants its interrupts, or -1 */
	call_single_data_t remote;	/* has that core handle one */
};

/* A virtio device, for its implementation only: device.c, vqueue.c. */
struct insula_virtio {
	struct virtio_device core;
	refcount_t refs;	/* the bus's and the driver core's */
	struct insula_bus *bus;
	u16 number;
	u32 config_size;
	u32 generation;		/* of the configuration, when last read */
	bool broken;		/* the base's side is gone for good */
	bool driven;		/* a driver has begun to make queues: the virtio core knows it */
	bool suspended;		/* it is gone until the next session */
	bool moved;		/* that is a session of a copy with its own base */
	unsigned long waits_until;	/* for its address, in jiffies */
	bool in_use;		/* by a driver, so this module is pinned */
	bool resuming;		/* status changes are not the driver's */
	u8 status;		/* last set by the driver */
	bool spread;		/* some of its queues have had cores of their own */
	spinlock_t lock;	/* the queues, against the doorbell's handler */
	struct insula_vqueue queues[INSULA_VIRTIO_QUEUES_MAX];
};

static inline struct insula_virtio *insula_vdev_of(struct virtio_device *core)
{
	return container_of(core, struct insula_virtio, core);
}

/* Begin a request. */
void insula_vdev_begin(const struct insula_virtio *device, struct insula_virtio_message *message,
		       u8 id);

/*
 * Make a request, with `size` bytes of body, whose response must have at least `expected`. Returns
 * the size of the response's body, or an error of insula_bus_request().
 */
int insula_vdev_request(struct insula_virtio *device, struct insula_virtio_message *message,
			u32 size, u32 expected);

#endif
