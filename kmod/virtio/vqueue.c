// SPDX-License-Identifier: GPL-2.0-only
/*
 * Virtqueues of a node's virtio devices. They are in the node's memory and use physical addresses,
 * which are the same on both sides. Notifications need no message: available and used buffers are
 * events of the channel.
 */
#include "virtio/vqueue.h"

#include <linux/err.h>
#include <linux/spinlock.h>
#include <linux/virtio_ring.h>

#include "compat/virtio.h"
#include "virtio/vdev.h"

static bool vqueue_notify(struct virtqueue *queue)
{
	struct insula_virtio *device = insula_vdev_of(queue->vdev);

	insula_bus_signal(device->bus, device->events[queue->index]);
	return true;
}

/* Get a queue's maximum size and its event bit. */
static int vqueue_get(struct insula_virtio *device, u32 index, u32 *size_max)
{
	struct insula_virtio_message message;
	struct insula_virtio_vqueue_index *request = (void *)message.body;
	struct insula_virtio_vqueue *vqueue = (void *)message.body;
	int err;

	insula_vdev_begin(device, &message, INSULA_VIRTIO_GET_VQUEUE);
	request->index = index;
	err = insula_vdev_request(device, &message, sizeof(*request), sizeof(*vqueue));
	if (err < 0)
		return err;
	if (!vqueue->size_max)
		return -ENOENT;
	if (vqueue->event >= INSULA_VIRTIO_EVENTS_MAX)
		return -EPROTO;
	*size_max = vqueue->size_max;
	device->events[index] = vqueue->event;
	return 0;
}

static int vqueue_set(struct insula_virtio *device, struct virtqueue *queue)
{
	struct insula_virtio_message message;
	struct insula_virtio_vqueue *vqueue = (void *)message.body;

	insula_vdev_begin(device, &message, INSULA_VIRTIO_SET_VQUEUE);
	vqueue->index = queue->index;
	vqueue->size = virtqueue_get_vring_size(queue);
	vqueue->descriptors = virtqueue_get_desc_addr(queue);
	vqueue->driver = virtqueue_get_avail_addr(queue);
	vqueue->device = virtqueue_get_used_addr(queue);
	return min(insula_vdev_request(device, &message, sizeof(*vqueue), 0), 0);
}

static void vqueue_reset(struct insula_virtio *device, u32 index)
{
	struct insula_virtio_message message;
	struct insula_virtio_vqueue_index *request = (void *)message.body;

	insula_vdev_begin(device, &message, INSULA_VIRTIO_RESET_VQUEUE);
	request->index = index;
	insula_vdev_request(device, &message, sizeof(*request), 0);
}

/* Show a queue to the doorbell's handler, or NULL: hide it. */
static void vqueue_publish(struct insula_virtio *device, u32 index, struct virtqueue *queue)
{
	unsigned long flags;

	spin_lock_irqsave(&device->lock, flags);
	device->queues[index] = queue;
	spin_unlock_irqrestore(&device->lock, flags);
}

struct virtqueue *insula_vqueue_find(struct insula_virtio *device, u32 index,
				     const struct virtqueue_info *info)
{
	struct virtqueue *queue;
	u32 size_max;
	int err;

	if (index >= ARRAY_SIZE(device->queues))
		return ERR_PTR(-ENOENT);
	err = vqueue_get(device, index, &size_max);
	if (err)
		return ERR_PTR(err);
	queue = vring_create_virtqueue(index, size_max, PAGE_SIZE, &device->core, true, true,
				       info->ctx, vqueue_notify, info->callback, info->name);
	if (!queue)
		return ERR_PTR(-ENOMEM);
	queue->num_max = size_max;
	err = vqueue_set(device, queue);
	if (err) {
		vring_del_virtqueue(queue);
		return ERR_PTR(err);
	}
	vqueue_publish(device, index, queue);
	return queue;
}

void insula_vqueues_delete(struct virtio_device *core)
{
	struct insula_virtio *device = insula_vdev_of(core);
	struct virtqueue *queue, *next;

	list_for_each_entry_safe(queue, next, &core->vqs, list) {
		vqueue_publish(device, queue->index, NULL);
		vqueue_reset(device, queue->index);
		vring_del_virtqueue(queue);
	}
}

void insula_vqueues_synchronize(struct virtio_device *core)
{
	struct insula_virtio *device = insula_vdev_of(core);
	unsigned long flags;

	spin_lock_irqsave(&device->lock, flags);
	spin_unlock_irqrestore(&device->lock, flags);
}

int insula_vqueues_resume(struct insula_virtio *device)
{
	struct virtqueue *queue;
	u32 size_max;
	int err;

	list_for_each_entry(queue, &device->core.vqs, list) {
		err = vqueue_get(device, queue->index, &size_max);
		if (err)
			return err;
		if (virtqueue_get_vring_size(queue) > size_max)
			return -EPROTO;
		err = vqueue_set(device, queue);
		if (err)
			return err;
	}
	return 0;
}

void insula_virtio_used(struct insula_virtio *device, u64 events)
{
	unsigned long flags;
	u32 i;

	spin_lock_irqsave(&device->lock, flags);
	for (i = 0; i < ARRAY_SIZE(device->queues); i++)
		if (device->queues[i] && events & BIT_ULL(device->events[i]))
			vring_interrupt(0, device->queues[i]);
	spin_unlock_irqrestore(&device->lock, flags);
}
