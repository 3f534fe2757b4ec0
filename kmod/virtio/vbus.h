/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_VBUS_H
#define INSULA_VBUS_H

#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/workqueue.h>

#include "virtio/bus.h"

struct insula_endpoint;
struct insula_virtio;
struct platform_device;

/* Adds and removes the device of a number. */
struct insula_plug {
	struct insula_bus *bus;
	u32 number;
	bool adds;
	struct work_struct work;
};

/* The bus, for its implementation only: bus.c, bus_request.c, plug.c. */
struct insula_bus {
	struct insula_endpoint *endpoint;
	struct platform_device *parent;
	struct workqueue_struct *queue;
	struct work_struct work;
	struct delayed_work timeout;	/* of devices that wait for their address */
	struct workqueue_struct *plugger;
	struct workqueue_struct *disk_plugger;
	struct insula_plug plugs[INSULA_VIRTIO_DEVICES_MAX];
	DECLARE_BITMAP(plugging, INSULA_VIRTIO_DEVICES_MAX);	/* devices that are plugs' */
	struct mutex lock;		/* the rings of the channel */
	u16 token;			/* of the last request */
	bool broken;			/* the session is unusable */
	bool stale;			/* devices were added or removed */
	bool ending;			/* the module is being unloaded */
	DECLARE_BITMAP(changed, INSULA_VIRTIO_DEVICES_MAX);	/* configurations */
	spinlock_t devices_lock;	/* the table, against the doorbell's handler */
	struct insula_virtio *devices[INSULA_VIRTIO_DEVICES_MAX];
};

/* Note an event for the work. */
void insula_bus_note_event(struct insula_bus *bus, const struct insula_virtio_header *header);

/* Receive the next message: its size, -EAGAIN, or an error that breaks the session. Locked. */
int insula_bus_receive(struct insula_bus *bus, struct insula_virtio_message *message);

/* Ask the base to ring when it sends an event. Locked. */
void insula_bus_enable_rings(struct insula_bus *bus);

/* Have the devices compared with the base's once more. In any context. */
void insula_bus_look_again(struct insula_bus *bus);

#endif
