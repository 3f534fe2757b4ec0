/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_VQUEUE_H
#define INSULA_VQUEUE_H

#include <linux/virtio.h>

struct cpumask;
struct insula_virtio;
struct virtqueue_info;

/* Make a new device's places for virtqueues. */
void insula_vqueues_init(struct insula_virtio *device);

/* Create virtqueue number `index`. ERR_PTR(-ENOENT): the device has none of that number. */
struct virtqueue *insula_vqueue_find(struct insula_virtio *device, u32 index,
				     const struct virtqueue_info *info);

/*
 * Operations of the virtio core: delete all virtqueues, sleeping; wait for callbacks in progress;
 * have a queue's callbacks on one of these cores, or with NULL on any.
 */
void insula_vqueues_delete(struct virtio_device *core);
void insula_vqueues_synchronize(struct virtio_device *core);
int insula_vqueue_set_affinity(struct virtqueue *queue, const struct cpumask *cpus);

/* Tell the base of the existing virtqueues again, in a new session. */
int insula_vqueues_resume(struct insula_virtio *device);

#endif
