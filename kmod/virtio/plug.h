/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_PLUG_H
#define INSULA_PLUG_H

#include <linux/types.h>

struct insula_bus;
struct insula_virtio;

/*
 * Add a device that was created for that number, or remove the one there is: begins, and returns.
 * For a number that is not being plugged, by the bus's work. Afterwards that compares devices once
 * more if this one was removed, or broken meanwhile.
 */
void insula_bus_plug(struct insula_bus *bus, u32 number, struct insula_virtio *device);
void insula_bus_unplug(struct insula_bus *bus, u32 number);

/* Whether a device is being added or removed: until then it may disappear. */
bool insula_bus_plugging(struct insula_bus *bus, u32 number);

/* The device of a number, with a reference, or NULL. */
struct insula_virtio *insula_bus_get_device(struct insula_bus *bus, u32 number);

/* init: -ENOMEM. flush: wait for what has begun. */
int insula_bus_init_plugs(struct insula_bus *bus);
void insula_bus_flush_plugs(struct insula_bus *bus);
void insula_bus_end_plugs(struct insula_bus *bus);

#endif
