// SPDX-License-Identifier: GPL-2.0-only
/*
 * insula_virtio.ko: bus of a node's virtio devices, for stock drivers. The base's side is
 * described in docs/src/virtio.md, the messages in insula_virtio.h.
 *
 * All devices share one channel, found by this node's insula.ko. They exist while the base is
 * in a session on it. When the base leaves, as when the supervisor dies, they are removed, and
 * added again with the next session: drivers see an unplug and a hotplug. Disks stay, and wait
 * for that session; so do all in a copy of a node, whose original's base it was (moved.c).
 *
 * Joining, resuming and events are handled by one work item, requests in the context of the
 * requesting driver. Either may receive a message meant for the other, so receiving needs
 * `lock`, and a message other than the awaited response is noted as an event for the work.
 *
 * Devices are added and removed by work items of their own (plug.c).
 */
#include "virtio/bus.h"

#include <linux/device.h>
#include <linux/err.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/netdevice.h>
#include <linux/platform_device.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>

#include "channel/endpoint.h"
#include "channel/session.h"
#include "guest/guest.h"
#include "virtio/device.h"
#include "virtio/plug.h"
#include "virtio/vbus.h"

static struct insula_bus bus;

void insula_bus_look_again(struct insula_bus *bus)
{
	WRITE_ONCE(bus->stale, true);
	queue_work(bus->queue, &bus->work);
}

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

/* Have a device removed whose base's side is gone. */
static void virtio_bus_discard(struct insula_bus *bus, struct insula_virtio *device, u32 number)
{
	insula_virtio_break(device);
	/* If it is being added, either that is seen here, or there that it is broken. */
	if (!insula_bus_plugging(bus, number) && bus->devices[number] == device)
		insula_bus_unplug(bus, number);
}

static void virtio_bus_resume(struct insula_bus *bus, struct insula_virtio *device, u32 number)
{
	int err = insula_virtio_resume(device);

	if (err == -EINPROGRESS) {
		queue_delayed_work(bus->queue, &bus->timeout, insula_virtio_time_left(device));
	} else if (err) {
		pr_err("cannot resume virtio device %d: %d\n", number, err);
		virtio_bus_discard(bus, device, number);
	}
}

static void virtio_bus_add(struct insula_bus *bus, u32 number)
{
	struct insula_virtio *device = insula_virtio_create(bus, &bus->parent->dev, number);

	if (IS_ERR(device))
		pr_err("cannot add virtio device %d: %ld\n", number, PTR_ERR(device));
	else
		insula_bus_plug(bus, number, device);
}

/*
 * Compare a device with the base's. One that is being removed, or could not be added, is looked at
 * once more afterwards.
 */
static void virtio_bus_match(struct insula_bus *bus, u32 number, bool present)
{
	bool free = !insula_bus_plugging(bus, number); /* then it is this work that adds one */
	struct insula_virtio *device = insula_bus_get_device(bus, number);

	if (!device) {
		if (present && free)
			virtio_bus_add(bus, number);
		return;
	}
	if (!present || insula_virtio_broken(device))
		virtio_bus_discard(bus, device, number);
	else if (insula_virtio_suspended(device))
		virtio_bus_resume(bus, device, number);
	insula_virtio_put(device);
}

/* Add and remove devices to match those of the base. */
static void virtio_bus_refresh(struct insula_bus *bus)
{
	DECLARE_BITMAP(present, INSULA_VIRTIO_DEVICES_MAX);
	u32 number;
	int err;

	WRITE_ONCE(bus->stale, false);
	err = virtio_bus_list(bus, present);
	if (err) {
		pr_err("cannot list the base's virtio devices: %d\n", err);
		return;
	}
	for (number = 0; number < INSULA_VIRTIO_DEVICES_MAX; number++)
		virtio_bus_match(bus, number, test_bit(number, present));
}

/* The base's side of a device is gone, until the next session or for good. */
static void virtio_bus_suspend(struct insula_bus *bus, u32 number, bool moved)
{
	struct insula_virtio *device = insula_bus_get_device(bus, number);

	if (!device)
		return;
	if (!insula_virtio_suspend(device, moved))
		virtio_bus_discard(bus, device, number);
	insula_virtio_put(device);
}

static void virtio_bus_leave(struct insula_bus *bus)
{
	bool moved = insula_session_moved(bus->endpoint);
	u32 number;

	WRITE_ONCE(bus->broken, true);
	for (number = 0; number < INSULA_VIRTIO_DEVICES_MAX; number++)
		virtio_bus_suspend(bus, number, moved);
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
		insula_bus_enable_rings(bus);
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
		size = insula_bus_receive(bus, &message);
		if (size >= 0)
			insula_bus_note_event(bus, &message.header);
	} while (size >= 0);
	if (size != -EAGAIN)
		WRITE_ONCE(bus->broken, true);
	insula_bus_enable_rings(bus);
	mutex_unlock(&bus->lock);
	for (number = 0; number < INSULA_VIRTIO_DEVICES_MAX; number++)
		if (test_and_clear_bit(number, bus->changed) && !insula_bus_plugging(bus, number) &&
		    bus->devices[number])
			insula_virtio_config_changed(bus->devices[number]);
}

static void virtio_bus_work(struct work_struct *work)
{
	struct insula_bus *bus = container_of(work, struct insula_bus, work);

	if (READ_ONCE(bus->ending))
		return;
	if (bus->endpoint->joined &&
	    (READ_ONCE(bus->broken) || insula_session_disconnected(bus->endpoint)))
		virtio_bus_leave(bus);
	if (!bus->endpoint->joined && !virtio_bus_join(bus))
		return;
	virtio_bus_take_events(bus);
	if (READ_ONCE(bus->stale))
		virtio_bus_refresh(bus);
}

/* A device has waited for its address for long enough. */
static void virtio_bus_timeout(struct work_struct *work)
{
	insula_bus_look_again(container_of(work, struct insula_bus, timeout.work));
}

/* A card that waits for its address may have it now. */
static int virtio_bus_card_event(struct notifier_block *block, unsigned long event, void *info)
{
	struct device *device = netdev_notifier_info_to_dev(info)->dev.parent;

	if (event == NETDEV_CHANGEADDR && device && device->parent == &bus.parent->dev)
		insula_bus_look_again(&bus);
	return NOTIFY_DONE;
}

static struct notifier_block card_events = {
	.notifier_call = virtio_bus_card_event,
};

static int __init virtio_bus_init(void)
{
	int err;

	mutex_init(&bus.lock);
	spin_lock_init(&bus.devices_lock);
	INIT_WORK(&bus.work, virtio_bus_work);
	INIT_DELAYED_WORK(&bus.timeout, virtio_bus_timeout);
	bus.queue = alloc_ordered_workqueue("insula_virtio", 0);
	if (!bus.queue)
		return -ENOMEM;
	err = insula_bus_init_plugs(&bus);
	if (err)
		goto destroy;
	bus.parent = platform_device_register_simple("insula_virtio", PLATFORM_DEVID_NONE, NULL, 0);
	if (IS_ERR(bus.parent)) {
		err = PTR_ERR(bus.parent);
		goto end_plugs;
	}
	bus.endpoint = insula_guest_endpoint_open(INSULA_CHANNEL_VIRTIO);
	if (IS_ERR(bus.endpoint)) {
		err = PTR_ERR(bus.endpoint);
		pr_err("there is no channel for virtio devices: %d\n", err);
		goto unregister;
	}
	err = register_netdevice_notifier(&card_events);
	if (err)
		goto release;
	insula_endpoint_enable(bus.endpoint, virtio_bus_rung);
	/* The base may have begun a session already. */
	queue_work(bus.queue, &bus.work);
	return 0;

release:
	insula_endpoint_release(bus.endpoint);
unregister:
	platform_device_unregister(bus.parent);
end_plugs:
	insula_bus_end_plugs(&bus);
destroy:
	destroy_workqueue(bus.queue);
	return err;
}

/* End the works, which queue each other. */
static void virtio_bus_end_works(void)
{
	WRITE_ONCE(bus.ending, true);
	cancel_work_sync(&bus.work);
	cancel_delayed_work_sync(&bus.timeout);
	/* Not cancelled: a device that is being removed has to be gone. */
	insula_bus_flush_plugs(&bus);
	cancel_work_sync(&bus.work);
}

static void __exit virtio_bus_exit(void)
{
	u32 number;

	unregister_netdevice_notifier(&card_events);
	insula_endpoint_disable(bus.endpoint);
	virtio_bus_end_works();
	/* The doorbell is disabled, but responses are still polled for. */
	for (number = 0; number < INSULA_VIRTIO_DEVICES_MAX; number++) {
		if (!bus.devices[number])
			continue;
		insula_virtio_break(bus.devices[number]);
		insula_bus_unplug(&bus, number);
	}
	insula_bus_flush_plugs(&bus);
	insula_endpoint_release(bus.endpoint);
	platform_device_unregister(bus.parent);
	insula_bus_end_plugs(&bus);
	destroy_workqueue(bus.queue);
}

module_init(virtio_bus_init);
module_exit(virtio_bus_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Virtio devices of a node, served by its base");
