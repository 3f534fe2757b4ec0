// SPDX-License-Identifier: GPL-2.0-only
/*
 * Virtqueues of a node's virtio devices. They are in the node's memory and use physical addresses,
 * which are the same on both sides. Notifications need no message: available and used buffers are
 * events of the channel.
 *
 * The doorbell of a channel rings on one core. A driver with several queues, as a network card has,
 * wants their interrupts on cores of their own (set_vq_affinity): those are asked to handle them.
 */
#include "virtio/vqueue.h"

#include <linux/cpumask.h>
#include <linux/err.h>
#include <linux/rcupdate.h>
#include <linux/smp.h>
#include <linux/spinlock.h>
#include <linux/virtio_ring.h>

#include "compat/virtio.h"
#include "virtio/vdev.h"

static bool vqueue_notify(struct virtqueue *queue)
{
	struct insula_virtio *device = insula_vdev_of(queue->vdev);

	insula_bus_signal(device->bus, device->queues[queue->index].event);
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
	device->queues[index].event = vqueue->event;
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
	device->queues[index].queue = queue;
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

/* Handle an interrupt of a queue, on whichever core. */
static void vqueue_interrupt(void *of)
{
	struct insula_vqueue *vqueue = of;
	unsigned long flags;

	spin_lock_irqsave(&vqueue->device->lock, flags);
	if (vqueue->queue)
		vring_interrupt(0, vqueue->queue);
	spin_unlock_irqrestore(&vqueue->device->lock, flags);
}

void insula_vqueues_init(struct insula_virtio *device)
{
	struct insula_vqueue *vqueue;
	u32 i;

	spin_lock_init(&device->lock);
	for (i = 0; i < ARRAY_SIZE(device->queues); i++) {
		vqueue = &device->queues[i];
		vqueue->device = device;
		vqueue->cpu = -1;
		INIT_CSD(&vqueue->remote, vqueue_interrupt, vqueue);
	}
}

int insula_vqueue_set_affinity(struct virtqueue *queue, const struct cpumask *cpus)
{
	struct insula_virtio *device = insula_vdev_of(queue->vdev);
	unsigned int cpu = cpus ? cpumask_any_and(cpus, cpu_online_mask) : nr_cpu_ids;

	WRITE_ONCE(device->queues[queue->index].cpu, cpu < nr_cpu_ids ? (int)cpu : -1);
	if (cpu < nr_cpu_ids)
		WRITE_ONCE(device->spread, true);
	return 0;
}

/* Wait until no core handles an interrupt of a queue that is hidden by now, or is yet to do so. */
static void vqueues_end_remote(struct insula_virtio *device)
{
	if (!READ_ONCE(device->spread))
		return;
	/* Each core has begun with what it was asked for, ... */
	kick_all_cpus_sync();
	/* ... and has come to an end with it. */
	synchronize_rcu();
}

void insula_vqueues_delete(struct virtio_device *core)
{
	struct insula_virtio *device = insula_vdev_of(core);
	struct virtqueue *queue, *next;

	list_for_each_entry(queue, &core->vqs, list)
		vqueue_publish(device, queue->index, NULL);
	vqueues_end_remote(device);
	list_for_each_entry_safe(queue, next, &core->vqs, list) {
		device->queues[queue->index].cpu = -1;
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

/* A call that is under way already sees what this one would be for. */
static void vqueue_used(struct insula_vqueue *vqueue)
{
	int cpu = READ_ONCE(vqueue->cpu);

	if (cpu < 0 || cpu == smp_processor_id() || !cpu_online(cpu))
		vring_interrupt(0, vqueue->queue);
	else
		smp_call_function_single_async(cpu, &vqueue->remote);
}

void insula_virtio_used(struct insula_virtio *device, u64 events)
{
	unsigned long flags;
	u32 i;

	/* No core goes offline meanwhile: each would have to agree. */
	spin_lock_irqsave(&device->lock, flags);
	for (i = 0; i < ARRAY_SIZE(device->queues); i++)
		if (device->queues[i].queue && events & BIT_ULL(device->queues[i].event))
			vqueue_used(&device->queues[i]);
	spin_unlock_irqrestore(&device->lock, flags);
}
