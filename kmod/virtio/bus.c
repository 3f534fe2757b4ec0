// SPDX-License-Identifier: GPL-2.0-only
/*
 * insula_virtio.ko: a node's virtio devices, for stock drivers. The other side is
 * docs/src/virtio.md's bus on the base; what both say is in insula_virtio.h.
 *
 * All devices share one channel, which insula.ko of this node has found. As long as the
 * base has a session open on it, they are there. When it leaves, as when its supervisor
 * dies, they go, and come back with its next session: their drivers see a device being
 * unplugged and another one being plugged in. Disks stay, and wait for that session.
 *
 * Everything happens in one work item (joining, adding, removing, events of the base) or
 * in the context of a driver that asks something. Both may receive what was sent to the
 * other, so who receives holds `lock`, and what is not his answer is an event, noted
 * for the work.
 */
#include "bus.h"

#include <linux/delay.h>
#include <linux/device.h>
#include <linux/err.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/platform_device.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "device.h"
#include "inside.h"
#include "own_end.h"

/* How long the base may take for an answer. */
#define ANSWER_TIMEOUT_MS	10000
/* How often an answer is looked for before sleeping. */
#define POLLS			2000

struct insula_bus {
	struct insula_own_end end;
	struct platform_device *parent;
	struct workqueue_struct *queue;
	struct work_struct work;
	wait_queue_head_t waiting;	/* for an answer */
	atomic_t rings;			/* so far */
	struct mutex lock;		/* the rings of the channel */
	u16 token;			/* of the last request */
	bool lost;			/* the session is of no use any more */
	bool stale;			/* devices have come or gone */
	DECLARE_BITMAP(changed, INSULA_VIRTIO_DEVICES_MAX);	/* configurations */
	spinlock_t devices_lock;	/* the table, against who is rung */
	struct insula_virtio *devices[INSULA_VIRTIO_DEVICES_MAX];
};

static struct insula_bus bus;

static void rung(struct insula_own_end *end, u64 events)
{
	struct insula_bus *bus = container_of(end, struct insula_bus, end);
	unsigned long flags;
	u32 i;

	spin_lock_irqsave(&bus->devices_lock, flags);
	for (i = 0; events && i < ARRAY_SIZE(bus->devices); i++)
		if (bus->devices[i])
			insula_virtio_used(bus->devices[i], events);
	spin_unlock_irqrestore(&bus->devices_lock, flags);
	atomic_inc(&bus->rings);
	wake_up(&bus->waiting);
	queue_work(bus->queue, &bus->work);
}

void insula_bus_signal(struct insula_bus *bus, u32 event)
{
	insula_own_end_signal(&bus->end, event);
}

/* What came unasked: noted for the work. */
static void note(struct insula_bus *bus, const struct insula_virtio_header *header)
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

/* Bytes of the next message, or -EAGAIN, or what makes the session useless. */
static int receive(struct insula_bus *bus, struct insula_virtio_message *message)
{
	struct insula_received received;
	int err;

	lockdep_assert_held(&bus->lock);
	err = insula_own_end_receive(&bus->end, message, sizeof(*message), &received);
	if (err)
		return err;
	if (received.size < sizeof(message->header) || received.size != message->header.size)
		return -EPROTO;
	return received.size;
}

/* Receive until there is the answer to the last request; its size, or -EAGAIN. */
static int receive_answer(struct insula_bus *bus, struct insula_virtio_message *message)
{
	int size;

	for (;;) {
		size = receive(bus, message);
		if (size < 0)
			return size;
		if (message->header.kind & INSULA_VIRTIO_RESPONSE &&
		    message->header.token == bus->token)
			return size;
		note(bus, &message->header);
	}
}

/* Wait until rung, until `deadline`; at once if there is something to receive. */
static int sleep(struct insula_bus *bus, unsigned long deadline)
{
	long left = deadline - jiffies;
	int rings = atomic_read(&bus->rings);
	int err;

	if (insula_own_end_hung_up(&bus->end))
		return -EPIPE;
	if (left <= 0)
		return -ETIMEDOUT;
	err = insula_consumer_prepare_to_sleep(&bus->end.consumer);
	if (err > 0) {
		wait_event_timeout(bus->waiting, atomic_read(&bus->rings) != rings, left);
		err = 0;
	}
	insula_consumer_stay_awake(&bus->end.consumer);
	return err;
}

static int await_answer(struct insula_bus *bus, struct insula_virtio_message *message)
{
	unsigned long deadline = jiffies + msecs_to_jiffies(ANSWER_TIMEOUT_MS);
	int polls, size, err;

	for (;;) {
		for (polls = 0; polls < POLLS; polls++) {
			size = receive_answer(bus, message);
			if (size != -EAGAIN)
				return size;
			cpu_relax();
		}
		err = sleep(bus, deadline);
		if (err)
			return err;
	}
}

static int send(struct insula_bus *bus, struct insula_virtio_message *message, u32 size)
{
	struct insula_message sent = {
		.bytes = message,
		.bytes_size = sizeof(message->header) + size,
	};

	message->header.token = ++bus->token;
	message->header.size = sent.bytes_size;
	return insula_own_end_send(&bus->end, &sent);
}

/* Tell the base to ring when it sends something unasked. */
static void listen(struct insula_bus *bus)
{
	if (insula_consumer_prepare_to_sleep(&bus->end.consumer) <= 0)
		queue_work(bus->queue, &bus->work);
}

int insula_bus_ask(struct insula_bus *bus, struct insula_virtio_message *message, u32 size)
{
	u8 id = message->header.id;
	int err;

	mutex_lock(&bus->lock);
	err = bus->lost || !bus->end.joined ? -EPIPE : 0;
	if (!err) {
		insula_consumer_stay_awake(&bus->end.consumer);
		err = send(bus, message, size);
		if (!err)
			err = await_answer(bus, message);
		if (err >= 0 && message->header.id != id)
			err = -EPROTO;
		if (err < 0)
			WRITE_ONCE(bus->lost, true);
		listen(bus);
	}
	mutex_unlock(&bus->lock);
	return err < 0 ? err : err - (int)sizeof(message->header);
}

static struct insula_virtio *set_device(struct insula_bus *bus, u32 number,
					struct insula_virtio *device)
{
	unsigned long flags;

	spin_lock_irqsave(&bus->devices_lock, flags);
	swap(bus->devices[number], device);
	spin_unlock_irqrestore(&bus->devices_lock, flags);
	return device;
}

static int add_device(struct insula_bus *bus, u16 number)
{
	struct insula_virtio *device = insula_virtio_create(bus, &bus->parent->dev, number);
	int err;

	if (IS_ERR(device))
		return PTR_ERR(device);
	/* Before it is registered: its driver wants to be rung from its first moment on. */
	set_device(bus, number, device);
	err = insula_virtio_register(device);
	if (err) {
		set_device(bus, number, NULL);
		insula_virtio_put(device);
	}
	return err;
}

static void remove_device(struct insula_bus *bus, u16 number, bool broken)
{
	struct insula_virtio *device = bus->devices[number];

	if (!device)
		return;
	insula_virtio_unregister(device, broken);
	set_device(bus, number, NULL);
	insula_virtio_put(device);
}

/* Which devices the base says that there are. */
static int list(struct insula_bus *bus, unsigned long *there)
{
	struct insula_virtio_message message = {
		.header = { .kind = INSULA_VIRTIO_BUS, .id = INSULA_VIRTIO_GET_DEVICES },
	};
	struct insula_virtio_device_range *asked = (void *)message.body;
	struct insula_virtio_device_list *told = (void *)message.body;
	const u8 *bits = (const u8 *)(told + 1);
	int size, i;

	asked->count = INSULA_VIRTIO_DEVICES_MAX;
	size = insula_bus_ask(bus, &message, sizeof(*asked));
	if (size < 0)
		return size;
	if (size < sizeof(*told) || size < sizeof(*told) + DIV_ROUND_UP(told->count, 8))
		return -EPROTO;
	bitmap_zero(there, INSULA_VIRTIO_DEVICES_MAX);
	for (i = 0; i < min_t(int, told->count, INSULA_VIRTIO_DEVICES_MAX); i++)
		if (bits[i / 8] & BIT(i % 8))
			__set_bit(i, there);
	return 0;
}

/* Let there be the device of that number: the one that waits for the base, or another. */
static int restore(struct insula_bus *bus, u16 number)
{
	struct insula_virtio *device = bus->devices[number];
	int err;

	if (device && insula_virtio_suspended(device)) {
		err = insula_virtio_resume(device);
		if (err) {
			pr_err("virtio device %d cannot go on: %d\n", number, err);
			remove_device(bus, number, true);
		}
	}
	return bus->devices[number] ? 0 : add_device(bus, number);
}

/* Let there be the devices that the base has. */
static void refresh(struct insula_bus *bus)
{
	DECLARE_BITMAP(there, INSULA_VIRTIO_DEVICES_MAX);
	int number, err;

	WRITE_ONCE(bus->stale, false);
	err = list(bus, there);
	if (err) {
		pr_err("the base does not list its devices: %d\n", err);
		return;
	}
	for (number = 0; number < INSULA_VIRTIO_DEVICES_MAX; number++) {
		err = 0;
		if (test_bit(number, there))
			err = restore(bus, number);
		else
			remove_device(bus, number, false);
		if (err)
			pr_err("virtio device %d of the base: %d\n", number, err);
	}
}

static void leave(struct insula_bus *bus)
{
	int number;

	WRITE_ONCE(bus->lost, true);
	for (number = 0; number < INSULA_VIRTIO_DEVICES_MAX; number++)
		if (bus->devices[number] && !insula_virtio_suspend(bus->devices[number]))
			remove_device(bus, number, true);
	mutex_lock(&bus->lock);
	insula_own_end_leave(&bus->end);
	mutex_unlock(&bus->lock);
}

static bool join(struct insula_bus *bus)
{
	bool joined;

	mutex_lock(&bus->lock);
	joined = insula_own_end_join(&bus->end);
	if (joined) {
		WRITE_ONCE(bus->lost, false);
		WRITE_ONCE(bus->stale, true);
		listen(bus);
	}
	mutex_unlock(&bus->lock);
	return joined;
}

/* What the base has sent unasked. */
static void take_events(struct insula_bus *bus)
{
	struct insula_virtio_message message;
	int size, number;

	mutex_lock(&bus->lock);
	insula_consumer_stay_awake(&bus->end.consumer);
	do {
		size = receive(bus, &message);
		if (size >= 0)
			note(bus, &message.header);
	} while (size >= 0);
	if (size != -EAGAIN)
		WRITE_ONCE(bus->lost, true);
	listen(bus);
	mutex_unlock(&bus->lock);
	for (number = 0; number < INSULA_VIRTIO_DEVICES_MAX; number++)
		if (test_and_clear_bit(number, bus->changed) && bus->devices[number])
			insula_virtio_config_changed(bus->devices[number]);
}

static void work(struct work_struct *work)
{
	struct insula_bus *bus = container_of(work, struct insula_bus, work);

	if (bus->end.joined && (READ_ONCE(bus->lost) || insula_own_end_hung_up(&bus->end)))
		leave(bus);
	if (!bus->end.joined && !join(bus))
		return;
	take_events(bus);
	if (READ_ONCE(bus->stale))
		refresh(bus);
}

static int __init bus_init(void)
{
	int err;

	mutex_init(&bus.lock);
	spin_lock_init(&bus.devices_lock);
	init_waitqueue_head(&bus.waiting);
	INIT_WORK(&bus.work, work);
	bus.end.rung = rung;
	bus.queue = alloc_ordered_workqueue("insula_virtio", 0);
	if (!bus.queue)
		return -ENOMEM;
	bus.parent = platform_device_register_simple("insula_virtio", PLATFORM_DEVID_NONE, NULL, 0);
	if (IS_ERR(bus.parent)) {
		err = PTR_ERR(bus.parent);
		goto destroy;
	}
	err = insula_inside_claim(&bus.end, INSULA_CHANNEL_VIRTIO);
	if (err) {
		pr_err("there is no channel for virtio devices: %d\n", err);
		goto unregister;
	}
	/* The base may have been there first. */
	queue_work(bus.queue, &bus.work);
	return 0;

unregister:
	platform_device_unregister(bus.parent);
destroy:
	destroy_workqueue(bus.queue);
	return err;
}

static void __exit bus_exit(void)
{
	int number;

	insula_own_end_silence(&bus.end);
	cancel_work_sync(&bus.work);
	/* Nobody rings any more, but who polls is answered. */
	for (number = 0; number < INSULA_VIRTIO_DEVICES_MAX; number++)
		remove_device(&bus, number, true);
	insula_own_end_release(&bus.end);
	platform_device_unregister(bus.parent);
	destroy_workqueue(bus.queue);
}

module_init(bus_init);
module_exit(bus_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Virtio devices of a node, served by its base");
