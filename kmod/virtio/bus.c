// SPDX-License-Identifier: GPL-2.0-only
/*
 * insula_virtio.ko: bus of a node's virtio devices, for stock drivers. The base's side is
 * described in docs/src/virtio.md, the messages in insula_virtio.h.
 *
 * All devices share one channel, found by this node's insula.ko. They exist while the base is
 * in a session on it. When the base leaves, as when the supervisor dies, they are removed, and
 * added again with the next session: drivers see an unplug and a hotplug. Disks stay, and wait
 * for that session.
 *
 * Joining, adding, removing and events are handled by one work item, requests in the context of
 * the requesting driver. Either may receive a message meant for the other, so receiving needs
 * `lock`, and a message other than the awaited response is noted as an event for the work.
 */
#include "virtio/bus.h"

#include <linux/delay.h>
#include <linux/device.h>
#include <linux/err.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/platform_device.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "channel/endpoint.h"
#include "channel/session.h"
#include "guest/guest.h"
#include "virtio/device.h"

/* Timeout of a request. */
#define ANSWER_TIMEOUT_MS	10000
/* Polls for a response before sleeping. */
#define POLLS			2000

struct insula_bus {
	struct insula_endpoint *endpoint;
	struct platform_device *parent;
	struct workqueue_struct *queue;
	struct work_struct work;
	struct mutex lock;		/* the rings of the channel */
	u16 token;			/* of the last request */
	bool broken;			/* the session is unusable */
	bool stale;			/* devices were added or removed */
	DECLARE_BITMAP(changed, INSULA_VIRTIO_DEVICES_MAX);	/* configurations */
	spinlock_t devices_lock;	/* the table, against the doorbell's handler */
	struct insula_virtio *devices[INSULA_VIRTIO_DEVICES_MAX];
};

static struct insula_bus bus;

static void virtio_bus_rung(struct insula_endpoint *endpoint, u64 events)
{
	unsigned long flags;
	u32 i;

	spin_lock_irqsave(&bus.devices_lock, flags);
	for (i = 0; events && i < ARRAY_SIZE(bus.devices); i++)
		if (bus.devices[i])
			insula_virtio_used(bus.devices[i], events);
	spin_unlock_irqrestore(&bus.devices_lock, flags);
	queue_work(bus.queue, &bus.work);
}

void insula_bus_signal(struct insula_bus *bus, u32 event)
{
	insula_session_signal(bus->endpoint, event);
}

/* Note an event for the work. */
static void virtio_bus_note_event(struct insula_bus *bus, const struct insula_virtio_header *header)
{
	if (header->kind & INSULA_VIRTIO_BUS) {
		if (header->id == INSULA_VIRTIO_EVENT_DEVICE)
			WRITE_ONCE(bus->stale, true);
	} else if (header->id == INSULA_VIRTIO_EVENT_CONFIG &&
		   header->device < INSULA_VIRTIO_DEVICES_MAX) {
		set_bit(header->device, bus->changed);
	}
	queue_work(bus->queue, &bus->work);
}

/* Receive the next message: its size, -EAGAIN, or an error that breaks the session. */
static int virtio_bus_receive(struct insula_bus *bus, struct insula_virtio_message *message)
{
	struct insula_received received;
	int err;

	lockdep_assert_held(&bus->lock);
	err = insula_endpoint_receive(bus->endpoint, message, sizeof(*message), &received);
	if (err)
		return err;
	if (received.size < sizeof(message->header) || received.size != message->header.size)
		return -EPROTO;
	return received.size;
}

/* Receive up to the response to the last request: its size, or -EAGAIN. */
static int virtio_bus_receive_response(struct insula_bus *bus,
				       struct insula_virtio_message *message)
{
	int size;

	for (;;) {
		size = virtio_bus_receive(bus, message);
		if (size < 0)
			return size;
		if (message->header.kind & INSULA_VIRTIO_RESPONSE &&
		    message->header.token == bus->token)
			return size;
		virtio_bus_note_event(bus, &message->header);
	}
}

/* Sleep until rung, or `deadline`; returns at once if there is a message. */
static int virtio_bus_sleep(struct insula_bus *bus, unsigned long deadline)
{
	struct insula_endpoint *endpoint = bus->endpoint;
	s64 rings = atomic64_read(&endpoint->rings_count);
	long left = deadline - jiffies;
	int err;

	if (insula_session_disconnected(endpoint))
		return -EPIPE;
	if (left <= 0)
		return -ETIMEDOUT;
	err = insula_consumer_prepare_to_sleep(&endpoint->consumer);
	if (err > 0) {
		wait_event_timeout(endpoint->waitqueue,
				   atomic64_read(&endpoint->rings_count) != rings, left);
		err = 0;
	}
	insula_consumer_stay_awake(&endpoint->consumer);
	return err;
}

static int virtio_bus_wait_response(struct insula_bus *bus, struct insula_virtio_message *message)
{
	unsigned long deadline = jiffies + msecs_to_jiffies(ANSWER_TIMEOUT_MS);
	int polls, size, err;

	for (;;) {
		for (polls = 0; polls < POLLS; polls++) {
			size = virtio_bus_receive_response(bus, message);
			if (size != -EAGAIN)
				return size;
			cpu_relax();
		}
		err = virtio_bus_sleep(bus, deadline);
		if (err)
			return err;
	}
}

static int virtio_bus_send(struct insula_bus *bus, struct insula_virtio_message *message, u32 size)
{
	struct insula_message sent = {
		.bytes = message,
		.bytes_size = sizeof(message->header) + size,
	};

	message->header.token = ++bus->token;
	message->header.size = sent.bytes_size;
	return insula_endpoint_send(bus->endpoint, &sent);
}

/* Ask the base to ring when it sends an event. */
static void virtio_bus_enable_rings(struct insula_bus *bus)
{
	if (insula_consumer_prepare_to_sleep(&bus->endpoint->consumer) <= 0)
		queue_work(bus->queue, &bus->work);
}

int insula_bus_request(struct insula_bus *bus, struct insula_virtio_message *message, u32 size)
{
	u8 id = message->header.id;
	int err;

	mutex_lock(&bus->lock);
	err = bus->broken || !bus->endpoint->joined ? -EPIPE : 0;
	if (!err) {
		insula_consumer_stay_awake(&bus->endpoint->consumer);
		err = virtio_bus_send(bus, message, size);
		if (!err)
			err = virtio_bus_wait_response(bus, message);
		if (err >= 0 && message->header.id != id)
			err = -EPROTO;
		if (err < 0)
			WRITE_ONCE(bus->broken, true);
		virtio_bus_enable_rings(bus);
	}
	mutex_unlock(&bus->lock);
	return err < 0 ? err : err - (int)sizeof(message->header);
}

static struct insula_virtio *virtio_bus_set_device(struct insula_bus *bus, u32 number,
						   struct insula_virtio *device)
{
	unsigned long flags;

	spin_lock_irqsave(&bus->devices_lock, flags);
	swap(bus->devices[number], device);
	spin_unlock_irqrestore(&bus->devices_lock, flags);
	return device;
}

static int virtio_bus_add_device(struct insula_bus *bus, u16 number)
{
	struct insula_virtio *device = insula_virtio_create(bus, &bus->parent->dev, number);
	int err;

	if (IS_ERR(device))
		return PTR_ERR(device);
	/* Before it is registered: its driver may get interrupts at once. */
	virtio_bus_set_device(bus, number, device);
	err = insula_virtio_register(device);
	if (err) {
		virtio_bus_set_device(bus, number, NULL);
		insula_virtio_put(device);
	}
	return err;
}

static void virtio_bus_remove_device(struct insula_bus *bus, u16 number, bool broken)
{
	struct insula_virtio *device = bus->devices[number];

	if (!device)
		return;
	insula_virtio_unregister(device, broken);
	virtio_bus_set_device(bus, number, NULL);
	insula_virtio_put(device);
}

/* Get the bitmap of the base's devices. */
static int virtio_bus_list(struct insula_bus *bus, unsigned long *present)
{
	struct insula_virtio_message message = {
		.header = { .kind = INSULA_VIRTIO_BUS, .id = INSULA_VIRTIO_GET_DEVICES },
	};
	struct insula_virtio_device_range *range = (void *)message.body;
	struct insula_virtio_device_list *listed = (void *)message.body;
	const u8 *bits = (const u8 *)(listed + 1);
	int size, i;

	range->count = INSULA_VIRTIO_DEVICES_MAX;
	size = insula_bus_request(bus, &message, sizeof(*range));
	if (size < 0)
		return size;
	if (size < sizeof(*listed) || size < sizeof(*listed) + DIV_ROUND_UP(listed->count, 8))
		return -EPROTO;
	bitmap_zero(present, INSULA_VIRTIO_DEVICES_MAX);
	for (i = 0; i < min_t(int, listed->count, INSULA_VIRTIO_DEVICES_MAX); i++)
		if (bits[i / 8] & BIT(i % 8))
			__set_bit(i, present);
	return 0;
}

/* Resume a suspended device, or add it. */
static int virtio_bus_restore(struct insula_bus *bus, u16 number)
{
	struct insula_virtio *device = bus->devices[number];
	int err;

	if (device && insula_virtio_suspended(device)) {
		err = insula_virtio_resume(device);
		if (err) {
			pr_err("cannot resume virtio device %d: %d\n", number, err);
			virtio_bus_remove_device(bus, number, true);
		}
	}
	return bus->devices[number] ? 0 : virtio_bus_add_device(bus, number);
}

/* Add and remove devices to match those of the base. */
static void virtio_bus_refresh(struct insula_bus *bus)
{
	DECLARE_BITMAP(present, INSULA_VIRTIO_DEVICES_MAX);
	int number, err;

	WRITE_ONCE(bus->stale, false);
	err = virtio_bus_list(bus, present);
	if (err) {
		pr_err("cannot list the base's virtio devices: %d\n", err);
		return;
	}
	for (number = 0; number < INSULA_VIRTIO_DEVICES_MAX; number++) {
		err = 0;
		if (test_bit(number, present))
			err = virtio_bus_restore(bus, number);
		else
			virtio_bus_remove_device(bus, number, false);
		if (err)
			pr_err("cannot add virtio device %d: %d\n", number, err);
	}
}

static void virtio_bus_leave(struct insula_bus *bus)
{
	int number;

	WRITE_ONCE(bus->broken, true);
	for (number = 0; number < INSULA_VIRTIO_DEVICES_MAX; number++)
		if (bus->devices[number] && !insula_virtio_suspend(bus->devices[number]))
			virtio_bus_remove_device(bus, number, true);
	mutex_lock(&bus->lock);
	insula_endpoint_leave(bus->endpoint);
	mutex_unlock(&bus->lock);
}

static bool virtio_bus_join(struct insula_bus *bus)
{
	bool joined;

	mutex_lock(&bus->lock);
	joined = insula_endpoint_join(bus->endpoint);
	if (joined) {
		WRITE_ONCE(bus->broken, false);
		WRITE_ONCE(bus->stale, true);
		virtio_bus_enable_rings(bus);
	}
	mutex_unlock(&bus->lock);
	return joined;
}

/* Receive and handle events of the base. */
static void virtio_bus_take_events(struct insula_bus *bus)
{
	struct insula_virtio_message message;
	int size, number;

	mutex_lock(&bus->lock);
	insula_consumer_stay_awake(&bus->endpoint->consumer);
	do {
		size = virtio_bus_receive(bus, &message);
		if (size >= 0)
			virtio_bus_note_event(bus, &message.header);
	} while (size >= 0);
	if (size != -EAGAIN)
		WRITE_ONCE(bus->broken, true);
	virtio_bus_enable_rings(bus);
	mutex_unlock(&bus->lock);
	for (number = 0; number < INSULA_VIRTIO_DEVICES_MAX; number++)
		if (test_and_clear_bit(number, bus->changed) && bus->devices[number])
			insula_virtio_config_changed(bus->devices[number]);
}

static void virtio_bus_work(struct work_struct *work)
{
	struct insula_bus *bus = container_of(work, struct insula_bus, work);

	if (bus->endpoint->joined &&
	    (READ_ONCE(bus->broken) || insula_session_disconnected(bus->endpoint)))
		virtio_bus_leave(bus);
	if (!bus->endpoint->joined && !virtio_bus_join(bus))
		return;
	virtio_bus_take_events(bus);
	if (READ_ONCE(bus->stale))
		virtio_bus_refresh(bus);
}

static int __init virtio_bus_init(void)
{
	int err;

	mutex_init(&bus.lock);
	spin_lock_init(&bus.devices_lock);
	INIT_WORK(&bus.work, virtio_bus_work);
	bus.queue = alloc_ordered_workqueue("insula_virtio", 0);
	if (!bus.queue)
		return -ENOMEM;
	bus.parent = platform_device_register_simple("insula_virtio", PLATFORM_DEVID_NONE, NULL, 0);
	if (IS_ERR(bus.parent)) {
		err = PTR_ERR(bus.parent);
		goto destroy;
	}
	bus.endpoint = insula_guest_endpoint_open(INSULA_CHANNEL_VIRTIO);
	if (IS_ERR(bus.endpoint)) {
		err = PTR_ERR(bus.endpoint);
		pr_err("there is no channel for virtio devices: %d\n", err);
		goto unregister;
	}
	insula_endpoint_enable(bus.endpoint, virtio_bus_rung);
	/* The base may have begun a session already. */
	queue_work(bus.queue, &bus.work);
	return 0;

unregister:
	platform_device_unregister(bus.parent);
destroy:
	destroy_workqueue(bus.queue);
	return err;
}

static void __exit virtio_bus_exit(void)
{
	int number;

	insula_endpoint_disable(bus.endpoint);
	cancel_work_sync(&bus.work);
	/* The doorbell is disabled, but responses are still polled for. */
	for (number = 0; number < INSULA_VIRTIO_DEVICES_MAX; number++)
		virtio_bus_remove_device(&bus, number, true);
	insula_endpoint_release(bus.endpoint);
	platform_device_unregister(bus.parent);
	destroy_workqueue(bus.queue);
}

module_init(virtio_bus_init);
module_exit(virtio_bus_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Virtio devices of a node, served by its base");
