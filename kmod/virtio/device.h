/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_VIRTIO_DEVICE_H
#define INSULA_VIRTIO_DEVICE_H

#include <linux/device.h>

#include "virtio/bus.h"

struct insula_virtio;

/*
 * Create a device by its number on the bus; ERR_PTR(-ENODEV) if there is none. All functions
 * here sleep, except insula_virtio_used().
 */
struct insula_virtio *insula_virtio_create(struct insula_bus *bus, struct device *parent,
					   u16 number);
bool insula_virtio_is_disk(const struct insula_virtio *device);
void insula_virtio_get(struct insula_virtio *device);
void insula_virtio_put(struct insula_virtio *device);

/* Register it with the virtio core. */
int insula_virtio_register(struct insula_virtio *device);

/* The base's side is gone for good: its driver makes no more requests. Registered or not. */
void insula_virtio_break(struct insula_virtio *device);
bool insula_virtio_broken(const struct insula_virtio *device);

/* Unregister it, broken or not. */
void insula_virtio_unregister(struct insula_virtio *device);

/*
 * suspend: the base's side is gone; true if the device can wait for the next session and then
 * repeat requests in flight, or lose them, else it must be unregistered as broken. `moved`: this
 * node is a copy, and that was the original's base. suspended: whether it waits. resume: continue
 * in a new session, or an error; -EINPROGRESS: it waits on for its address, at most for the time
 * left, in jiffies.
 */
bool insula_virtio_suspend(struct insula_virtio *device, bool moved);
bool insula_virtio_suspended(const struct insula_virtio *device);
int insula_virtio_resume(struct insula_virtio *device);
unsigned long insula_virtio_time_left(const struct insula_virtio *device);

/* Interrupt its virtqueues whose bits are in `events`. In interrupt. */
void insula_virtio_used(struct insula_virtio *device, u64 events);

/* Its configuration changed. */
void insula_virtio_config_changed(struct insula_virtio *device);

#endif
