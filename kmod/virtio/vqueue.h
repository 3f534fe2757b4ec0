/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_VQUEUE_H
#define INSULA_VQUEUE_H

#include <linux/virtio.h>

struct insula_virtio;
struct virtqueue_info;

/* Create virtqueue number `index`. ERR_PTR(-ENOENT): the device has none of that number. */
struct virtqueue *insula_vqueue_find(struct insula_virtio *device, u32 index,
				     const struct virtqueue_info *info);

/* Operations of the virtio core: delete all virtqueues; wait for callbacks in progress. */
void insula_vqueues_delete(struct virtio_device *core);
void insula_vqueues_synchronize(struct virtio_device *core);

/* Tell the base of the existing virtqueues again, in a new session. */
int insula_vqueues_resume(struct insula_virtio *device);

#endif
