// SPDX-License-Identifier: GPL-2.0-only
/*
 * Adding and removing the devices of a node's bus, each by a work item of its own.
 *
 * Drivers, to probe and remove, wait for locks of the kernel, as rtnl_lock(), whose holder may wait
 * for a disk, and to probe a disk for its partition table. Only the bus's work can bring a disk
 * back, so that must wait for none of these; nor does a device for the driver of another one. Disks
 * are added one after the other, since that gives them their names.
 */
#include "virtio/plug.h"

#include <linux/spinlock.h>
#include <linux/workqueue.h>

#include "virtio/device.h"
#include "virtio/vbus.h"

static void plug_set_device(struct insula_bus *bus, u32 number, struct insula_virtio *device)
{
	unsigned long flags;

	spin_lock_irqsave(&bus->devices_lock, flags);
	bus->devices[number] = device;
	spin_unlock_irqrestore(&bus->devices_lock, flags);
}

struct insula_virtio *insula_bus_get_device(struct insula_bus *bus, u32 number)
{
	struct insula_virtio *device;
	unsigned long flags;

	spin_lock_irqsave(&bus->devices_lock, flags);
	device = bus->devices[number];
	if (device)
		insula_virtio_get(device);
	spin_unlock_irqrestore(&bus->devices_lock, flags);
	return device;
}

/* Take a device from the table, whose reference is dropped. */
static void plug_take_out(struct insula_bus *bus, u32 number, struct insula_virtio *device)
{
	plug_set_device(bus, number, NULL);
	insula_virtio_put(device);
}

static void plug_carry_out(struct insula_plug *plug, struct insula_virtio *device)
{
	int err;

	if (!plug->adds) {
		insula_virtio_unregister(device);
		plug_take_out(plug->bus, plug->number, device);
		return;
	}
	err = insula_virtio_register(device);
	if (err) {
		pr_err("cannot add virtio device %d: %d\n", plug->number, err);
		plug_take_out(plug->bus, plug->number, device);
	}
}

static void plug_work(struct work_struct *work)
{
	struct insula_plug *plug = container_of(work, struct insula_plug, work);
	struct insula_bus *bus = plug->bus;
	struct insula_virtio *device = insula_bus_get_device(bus, plug->number);
	bool removed = !plug->adds;

	plug_carry_out(plug, device);
	clear_bit_unlock(plug->number, bus->plugging);
	/* Pairs with insula_virtio_break(). */
	smp_mb__after_atomic();
	if (removed || insula_virtio_broken(device))
		insula_bus_look_again(bus);
	insula_virtio_put(device);
}

static void plug_begin(struct insula_bus *bus, u32 number, bool adds)
{
	struct insula_plug *plug = &bus->plugs[number];
	bool disk = insula_virtio_is_disk(bus->devices[number]);

	plug->adds = adds;
	set_bit(number, bus->plugging);
	queue_work(disk ? bus->disk_plugger : bus->plugger, &plug->work);
}

void insula_bus_plug(struct insula_bus *bus, u32 number, struct insula_virtio *device)
{
	/* Before it is registered: its driver may get interrupts at once. */
	plug_set_device(bus, number, device);
	plug_begin(bus, number, true);
}

void insula_bus_unplug(struct insula_bus *bus, u32 number)
{
	plug_begin(bus, number, false);
}

bool insula_bus_plugging(struct insula_bus *bus, u32 number)
{
	return test_bit_acquire(number, bus->plugging);
}

int insula_bus_init_plugs(struct insula_bus *bus)
{
	u32 i;

	for (i = 0; i < ARRAY_SIZE(bus->plugs); i++) {
		bus->plugs[i].bus = bus;
		bus->plugs[i].number = i;
		INIT_WORK(&bus->plugs[i].work, plug_work);
	}
	bus->plugger = alloc_workqueue("insula_virtio_plug", WQ_UNBOUND, ARRAY_SIZE(bus->plugs));
	if (!bus->plugger)
		return -ENOMEM;
	bus->disk_plugger = alloc_ordered_workqueue("insula_virtio_disk", 0);
	if (bus->disk_plugger)
		return 0;
	destroy_workqueue(bus->plugger);
	return -ENOMEM;
}

void insula_bus_flush_plugs(struct insula_bus *bus)
{
	flush_workqueue(bus->plugger);
	flush_workqueue(bus->disk_plugger);
}

void insula_bus_end_plugs(struct insula_bus *bus)
{
	destroy_workqueue(bus->disk_plugger);
	destroy_workqueue(bus->plugger);
}
