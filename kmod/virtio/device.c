// SPDX-License-Identifier: GPL-2.0-only
/*
 * A virtio device implemented on the base, for stock drivers in a node: each operation of the
 * virtio core is a request to the base by a message of the virtio-msg draft (insula_virtio.h).
 */
#include "virtio/device.h"

#include <linux/err.h>
#include <linux/jiffies.h>
#include <linux/module.h>
#include <linux/refcount.h>
#include <linux/slab.h>
#include <linux/virtio_ids.h>
#include <linux/virtio_ring.h>

#include "compat/virtio.h"
#include "virtio/moved.h"
#include "virtio/vdev.h"
#include "virtio/vqueue.h"

/* Time for a node's agent to give a card its new address: some nodes have no agent. */
#define MOVED_TIMEOUT	(30 * HZ)

void insula_vdev_begin(const struct insula_virtio *device, struct insula_virtio_message *message,
		       u8 id)
{
	memset(message, 0, sizeof(*message));
	message->header.id = id;
	message->header.device = device->number;
}

int insula_vdev_request(struct insula_virtio *device, struct insula_virtio_message *message,
			u32 size, u32 expected)
{
	int answered;

	if (READ_ONCE(device->broken))
		return -EPIPE;
	answered = insula_bus_request(device->bus, message, size);
	if (answered >= 0 && answered < expected)
		answered = -EPROTO;
	if (answered < 0)
		dev_err(&device->core.dev, "request %#x failed: %d\n", message->header.id,
			answered);
	return answered;
}

static u64 vdev_get_features(struct virtio_device *core)
{
	struct insula_virtio_message message;
	struct insula_virtio_features *features = (void *)message.body;

	insula_vdev_begin(insula_vdev_of(core), &message, INSULA_VIRTIO_GET_FEATURES);
	features->blocks.count = ARRAY_SIZE(features->words);
	if (insula_vdev_request(insula_vdev_of(core), &message, sizeof(features->blocks),
				sizeof(*features)) < 0)
		return 0;
	return (u64)features->words[1] << 32 | features->words[0];
}

static int vdev_set_features(struct virtio_device *core)
{
	struct insula_virtio_message message;
	struct insula_virtio_features *features = (void *)message.body;

	insula_vdev_begin(insula_vdev_of(core), &message, INSULA_VIRTIO_SET_FEATURES);
	features->blocks.count = ARRAY_SIZE(features->words);
	features->words[0] = lower_32_bits(core->features);
	features->words[1] = upper_32_bits(core->features);
	return min(insula_vdev_request(insula_vdev_of(core), &message, sizeof(*features), 0), 0);
}

static int vdev_finalize_features(struct virtio_device *core)
{
	vring_transport_features(core);
	return vdev_set_features(core);
}

/* Read a part of the configuration that fits a message. */
static int vdev_get_config_part(struct insula_virtio *device, u32 offset, void *to, u32 size)
{
	struct insula_virtio_message message;
	struct insula_virtio_config_range *range = (void *)message.body;
	struct insula_virtio_config *config = (void *)message.body;
	int err;

	insula_vdev_begin(device, &message, INSULA_VIRTIO_GET_CONFIG);
	range->offset = offset;
	range->size = size;
	err = insula_vdev_request(device, &message, sizeof(*range), sizeof(*config) + size);
	if (err < 0)
		return err;
	device->generation = config->generation;
	memcpy(to, config + 1, size);
	return 0;
}

static void vdev_get_config(struct virtio_device *core, unsigned int offset, void *to,
			    unsigned int size)
{
	struct insula_virtio *device = insula_vdev_of(core);
	u32 done, part;

	memset(to, 0, size);
	if (size > device->config_size || offset > device->config_size - size)
		return;
	for (done = 0; done < size; done += part) {
		part = min_t(u32, size - done, INSULA_VIRTIO_CONFIG_MAX);
		if (vdev_get_config_part(device, offset + done, to + done, part))
			return;
	}
}

static int vdev_set_config_part(struct insula_virtio *device, u32 offset, const void *from,
				u32 size)
{
	struct insula_virtio_message message;
	struct insula_virtio_config *config = (void *)message.body;

	insula_vdev_begin(device, &message, INSULA_VIRTIO_SET_CONFIG);
	config->generation = device->generation;
	config->offset = offset;
	config->size = size;
	memcpy(config + 1, from, size);
	return min(insula_vdev_request(device, &message, sizeof(*config) + size,
				       sizeof(*config)), 0);
}

static void vdev_set_config(struct virtio_device *core, unsigned int offset, const void *from,
			    unsigned int size)
{
	struct insula_virtio *device = insula_vdev_of(core);
	u32 done, part;

	if (size > device->config_size || offset > device->config_size - size)
		return;
	for (done = 0; done < size; done += part) {
		part = min_t(u32, size - done, INSULA_VIRTIO_CONFIG_MAX);
		if (vdev_set_config_part(device, offset + done, from + done, part))
			return;
	}
}

static u32 vdev_generation(struct virtio_device *core)
{
	vdev_get_config_part(insula_vdev_of(core), 0, NULL, 0);
	return insula_vdev_of(core)->generation;
}

static u8 vdev_get_status(struct virtio_device *core)
{
	struct insula_virtio_message message;
	struct insula_virtio_status *status = (void *)message.body;

	insula_vdev_begin(insula_vdev_of(core), &message, INSULA_VIRTIO_GET_STATUS);
	if (insula_vdev_request(insula_vdev_of(core), &message, 0, sizeof(*status)) < 0)
		return 0;
	return status->status;
}

/*
 * Pin the module while a driver uses the device: unloading it would remove the node's root file
 * system and sockets. Unbinding a driver resets its device and drops the reference. The module
 * cannot be unloaded between the last put and the return from here: its exit waits for the
 * device, which the caller has locked.
 */
static void vdev_pin_module(struct insula_virtio *device, u8 status)
{
	bool in_use = status & VIRTIO_CONFIG_S_DRIVER_OK && !(status & VIRTIO_CONFIG_S_FAILED);

	if (in_use == device->in_use || device->resuming)
		return;
	device->in_use = in_use;
	if (in_use)
		__module_get(THIS_MODULE);
	else
		module_put(THIS_MODULE);
}

static void vdev_set_status(struct virtio_device *core, u8 value)
{
	struct insula_virtio_message message;
	struct insula_virtio_status *status = (void *)message.body;

	vdev_pin_module(insula_vdev_of(core), value);
	WRITE_ONCE(insula_vdev_of(core)->status, value);
	insula_vdev_begin(insula_vdev_of(core), &message, INSULA_VIRTIO_SET_STATUS);
	status->status = value;
	insula_vdev_request(insula_vdev_of(core), &message, sizeof(*status), sizeof(*status));
}

static void vdev_reset(struct virtio_device *core)
{
	vdev_set_status(core, 0);
}

static int vdev_find_vqs(struct virtio_device *core, unsigned int count, struct virtqueue *queues[],
			 INSULA_VQ_INFOS, struct irq_affinity *affinity)
{
	struct virtqueue_info info;
	u32 i, index = 0;

	/* Pairs with insula_virtio_break(): either sees the other. */
	smp_store_mb(insula_vdev_of(core)->driven, true);
	for (i = 0; i < count; i++) {
		info = insula_vq_info(i);
		queues[i] = info.name ? insula_vqueue_find(insula_vdev_of(core), index++, &info) :
					NULL;
		if (IS_ERR(queues[i])) {
			insula_vqueues_delete(core);
			return PTR_ERR(queues[i]);
		}
	}
	return 0;
}

static const char *vdev_bus_name(struct virtio_device *core)
{
	return "insula";
}

static const struct virtio_config_ops config_ops = {
	.get = vdev_get_config,
	.set = vdev_set_config,
	.generation = vdev_generation,
	.get_status = vdev_get_status,
	.set_status = vdev_set_status,
	.reset = vdev_reset,
	.find_vqs = vdev_find_vqs,
	.del_vqs = insula_vqueues_delete,
	.synchronize_cbs = insula_vqueues_synchronize,
	.set_vq_affinity = insula_vqueue_set_affinity,
	.get_features = vdev_get_features,
	.finalize_features = vdev_finalize_features,
	.bus_name = vdev_bus_name,
};

static void vdev_release(struct device *device)
{
	insula_virtio_put(insula_vdev_of(dev_to_virtio(device)));
}

static int vdev_get_info(struct insula_virtio *device, struct insula_virtio_device_info *info)
{
	struct insula_virtio_message message;
	int err;

	insula_vdev_begin(device, &message, INSULA_VIRTIO_GET_DEVICE_INFO);
	err = insula_bus_request(device->bus, &message, 0);
	if (err < 0)
		return err;
	memcpy(info, message.body, sizeof(*info));
	if (err < sizeof(*info) || info->feature_bits != 64)
		return -EPROTO;
	return info->device_id ? 0 : -ENODEV;
}

struct insula_virtio *insula_virtio_create(struct insula_bus *bus, struct device *parent,
					   u16 number)
{
	struct insula_virtio *device = kzalloc(sizeof(*device), GFP_KERNEL);
	struct insula_virtio_device_info info;
	int err;

	if (!device)
		return ERR_PTR(-ENOMEM);
	refcount_set(&device->refs, 1);
	device->bus = bus;
	device->number = number;
	device->core.dev.parent = parent;
	device->core.dev.release = vdev_release;
	device->core.config = &config_ops;
	insula_vqueues_init(device);
	err = vdev_get_info(device, &info);
	if (err) {
		kfree(device);
		return ERR_PTR(err);
	}
	device->core.id.device = info.device_id;
	device->core.id.vendor = info.vendor_id;
	device->config_size = info.config_size;
	return device;
}

bool insula_virtio_is_disk(const struct insula_virtio *device)
{
	return device->core.id.device == VIRTIO_ID_BLOCK;
}

int insula_virtio_register(struct insula_virtio *device)
{
	int err;

	/* The driver core's, dropped by vdev_release() once the device is known to it. */
	refcount_inc(&device->refs);
	err = register_virtio_device(&device->core);
	if (err)
		put_device(&device->core.dev);
	return err;
}

void insula_virtio_break(struct insula_virtio *device)
{
	/* Pairs with vdev_find_vqs(). Without queues there is nothing to break. */
	smp_store_mb(device->broken, true);
	if (READ_ONCE(device->driven))
		virtio_break_device(&device->core);
}

bool insula_virtio_broken(const struct insula_virtio *device)
{
	return READ_ONCE(device->broken);
}

void insula_virtio_unregister(struct insula_virtio *device)
{
	unregister_virtio_device(&device->core);
}

bool insula_virtio_suspend(struct insula_virtio *device, bool moved)
{
	bool in_use = READ_ONCE(device->status) & VIRTIO_CONFIG_S_DRIVER_OK;

	if (insula_virtio_broken(device))
		return false;
	/* Requests to a disk can be repeated; other devices have lost data in flight. */
	device->moved = in_use && moved && insula_moved_can_wait(device);
	device->suspended = device->moved || (in_use && insula_virtio_is_disk(device));
	device->waits_until = jiffies + MOVED_TIMEOUT;
	return device->suspended;
}

unsigned long insula_virtio_time_left(const struct insula_virtio *device)
{
	return time_before(jiffies, device->waits_until) ? device->waits_until - jiffies : 0;
}

bool insula_virtio_suspended(const struct insula_virtio *device)
{
	return device->suspended;
}

/* Set a status and check that the device accepts it. */
static int vdev_advance_status(struct insula_virtio *device, u8 status)
{
	vdev_set_status(&device->core, status);
	return vdev_get_status(&device->core) == status ? 0 : -EPROTO;
}

/* Repeat the driver's initialization of the device. */
static int vdev_repeat_setup(struct insula_virtio *device)
{
	u8 status = VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER;
	int err;

	err = vdev_advance_status(device, 0);
	if (!err)
		err = vdev_advance_status(device, status);
	if (!err)
		err = vdev_set_features(&device->core);
	status |= VIRTIO_CONFIG_S_FEATURES_OK;
	if (!err)
		err = vdev_advance_status(device, status);
	if (!err)
		err = insula_vqueues_resume(device);
	if (!err && device->moved)
		err = insula_moved_prepare(device);
	status |= VIRTIO_CONFIG_S_DRIVER_OK;
	return err ? err : vdev_advance_status(device, status);
}

int insula_virtio_resume(struct insula_virtio *device)
{
	struct insula_virtio_device_info info;
	int err;

	err = vdev_get_info(device, &info);
	if (err)
		return err;
	if (info.device_id != device->core.id.device || info.config_size != device->config_size)
		return -EPROTO;
	if (device->moved && !insula_moved_has_address(device))
		return insula_virtio_time_left(device) ? -EINPROGRESS : -ETIMEDOUT;
	device->resuming = true;
	err = vdev_repeat_setup(device);
	device->resuming = false;
	if (!err)
		device->suspended = false;
	return err;
}

void insula_virtio_get(struct insula_virtio *device)
{
	refcount_inc(&device->refs);
}

void insula_virtio_put(struct insula_virtio *device)
{
	if (refcount_dec_and_test(&device->refs))
		kfree(device);
}

void insula_virtio_config_changed(struct insula_virtio *device)
{
	virtio_config_changed(&device->core);
}
