// SPDX-License-Identifier: GPL-2.0-only
/*
 * Devices of a copy of a node (docs/src/isolation.md): they go on in a session with its own base.
 *
 * The drivers' queues are as the original's were at one moment: the base has read their used
 * indices before it copied the memory. So buffers for what is received need not be made again. What
 * was to be sent is the original's to send: it is dropped. Sockets learn of their new address as
 * after a migration, by the event that the specification has for that (5.10.6.6, "Device Events").
 * A network card waits until it has got its new address from the node's agent, which has taken the
 * original's IP address off it before. Without an agent it is removed after a while, and added as a
 * new one.
 */
#include "virtio/moved.h"

#include <linux/bottom_half.h>
#include <linux/etherdevice.h>
#include <linux/io.h>
#include <linux/iopoll.h>
#include <linux/netdevice.h>
#include <linux/rcupdate.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ids.h>
#include <linux/virtio_ring.h>
#include <linux/virtio_vsock.h>

#include "virtio/vdev.h"

/*
 * Queues of network cards, in pairs before a control queue, and of sockets (specification, 5.1.2
 * and 5.10.2).
 */
#define TRANSMIT_QUEUE	1
#define QUEUES_OF_PAIR	2
#define EVENT_QUEUE	2
/* The driver's work for an event, which asks for the new address. */
#define EVENT_POLL_US		100
#define EVENT_TIMEOUT_US	(2 * USEC_PER_SEC)

/*
 * The network card of a device, if it is one. Not under rtnl_lock(): its holder may wait for a
 * disk, which waits for this device's bus.
 */
static struct net_device *moved_card(const struct insula_virtio *device)
{
	struct net_device *card;

	for_each_netdev_rcu(&init_net, card)
		if (card->dev.parent == &device->core.dev)
			return card;
	return NULL;
}

bool insula_moved_can_wait(const struct insula_virtio *device)
{
	bool found;

	if (device->core.id.device == VIRTIO_ID_VSOCK)
		return true;
	if (device->core.id.device != VIRTIO_ID_NET)
		return false;
	/* One that was moved to a container: its agent does not find it. */
	rcu_read_lock();
	found = moved_card(device);
	rcu_read_unlock();
	return found;
}

bool insula_moved_has_address(struct insula_virtio *device)
{
	u8 address[ETH_ALEN] __aligned(2);
	struct net_device *card;
	bool same;

	if (device->core.id.device != VIRTIO_ID_NET)
		return true;
	/* At the start of struct virtio_net_config. */
	device->core.config->get(&device->core, 0, address, sizeof(address));
	rcu_read_lock();
	card = moved_card(device);
	same = card && ether_addr_equal(card->dev_addr, address);
	rcu_read_unlock();
	return same;
}

static u16 moved_available(const struct virtqueue *queue, const struct vring *vring)
{
	/* Before the entries. */
	return virtio16_to_cpu(queue->vdev, smp_load_acquire(&vring->avail->idx));
}

/* Give the driver the next available buffer back, as the base does. */
static void moved_use(const struct virtqueue *queue, const struct vring *vring, u32 size)
{
	struct virtio_device *core = queue->vdev;
	u16 index = virtio16_to_cpu(core, vring->used->idx), slot = index % vring->num;
	u16 head = virtio16_to_cpu(core, vring->avail->ring[slot]);

	vring->used->ring[slot].id = cpu_to_virtio32(core, head);
	vring->used->ring[slot].len = cpu_to_virtio32(core, size);
	/* After the entry. */
	smp_store_release(&vring->used->idx, cpu_to_virtio16(core, index + 1));
}

static void moved_drop_all(struct virtqueue *queue)
{
	const struct vring *vring = virtqueue_get_vring(queue);

	while (virtio16_to_cpu(queue->vdev, vring->used->idx) != moved_available(queue, vring))
		moved_use(queue, vring, 0);
}

/* Have the driver read its address anew, and reset connections; returns when it has. */
static int moved_reset_sockets(struct virtqueue *queue)
{
	const struct vring *vring = virtqueue_get_vring(queue);
	u16 index = virtio16_to_cpu(queue->vdev, vring->used->idx), now;
	u16 available = moved_available(queue, vring), head;
	struct virtio_vsock_event *event;

	if (index == available)
		return -EPROTO;
	head = virtio16_to_cpu(queue->vdev, vring->avail->ring[index % vring->num]);
	event = phys_to_virt(virtio64_to_cpu(queue->vdev, vring->desc[head].addr));
	event->id = cpu_to_le32(VIRTIO_VSOCK_EVENT_TRANSPORT_RESET);
	moved_use(queue, vring, sizeof(*event));
	vring_interrupt(0, queue);
	/* It makes the buffer available again. */
	return read_poll_timeout(moved_available, now, now != available, EVENT_POLL_US,
				 EVENT_TIMEOUT_US, false, queue, vring);
}

int insula_moved_prepare(struct insula_virtio *device)
{
	struct virtqueue *event = device->queues[EVENT_QUEUE].queue;
	u32 i;

	for (i = TRANSMIT_QUEUE; i < ARRAY_SIZE(device->queues); i += QUEUES_OF_PAIR)
		if (device->queues[i].queue)
			moved_drop_all(device->queues[i].queue);
	/* Interrupts for what the original's base had done may be lost. They raise softirqs. */
	local_bh_disable();
	insula_virtio_used(device, U64_MAX);
	local_bh_enable();
	if (device->core.id.device == VIRTIO_ID_VSOCK)
		return event ? moved_reset_sockets(event) : -EPROTO;
	return 0;
}
