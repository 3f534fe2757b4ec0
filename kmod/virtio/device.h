/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_VIRTIO_DEVICE_H
#define INSULA_VIRTIO_DEVICE_H

#include <linux/device.h>

#include "bus.h"

struct insula_virtio;

/*
 * A device of that number on the bus; ERR_PTR(-ENODEV) if there is none. Sleeps, as all
 * but insula_virtio_used().
 */
struct insula_virtio *insula_virtio_create(struct insula_bus *bus, struct device *parent,
					   u16 number);
void insula_virtio_put(struct insula_virtio *device);

/* Make it known to the kernel's drivers. */
int insula_virtio_register(struct insula_virtio *device);

/*
 * Take it from its driver. `broken`: the base's side is no more, so nothing that is under
 * way there will come back.
 */
void insula_virtio_unregister(struct insula_virtio *device, bool broken);

/*
 * The base's side is no more. Whether the device can wait for another, to which all goes
 * that has not come back; else it is to be unregistered as broken. Then, with the base's
 * next session, whether it waits; and have it go on: an error if it cannot.
 */
bool insula_virtio_suspend(struct insula_virtio *device);
bool insula_virtio_suspended(const struct insula_virtio *device);
int insula_virtio_resume(struct insula_virtio *device);

/* Its virtqueues whose bits are in `events` have been used. In interrupt. */
void insula_virtio_used(struct insula_virtio *device, u64 events);

/* Its configuration has changed. */
void insula_virtio_config_changed(struct insula_virtio *device);

#endif
