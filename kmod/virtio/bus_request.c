// SPDX-License-Identifier: GPL-2.0-only
/*
 * Messages of the bus: a request of a driver, and the wait for its response, during which events
 * of the base may come, too.
 */
#include "virtio/bus.h"

#include <linux/err.h>
#include <linux/sched.h>
#include <linux/wait.h>

#include "channel/endpoint.h"
#include "channel/session.h"
#include "virtio/vbus.h"

/* Timeout of a request. */
#define ANSWER_TIMEOUT_MS	10000
/* Polls for a response before sleeping. */
#define POLLS			2000

void insula_bus_note_event(struct insula_bus *bus, const struct insula_virtio_header *header)
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

int insula_bus_receive(struct insula_bus *bus, struct insula_virtio_message *message)
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
		size = insula_bus_receive(bus, message);
		if (size < 0)
			return size;
		if (message->header.kind & INSULA_VIRTIO_RESPONSE &&
		    message->header.token == bus->token)
			return size;
		insula_bus_note_event(bus, &message->header);
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

void insula_bus_enable_rings(struct insula_bus *bus)
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
		insula_bus_enable_rings(bus);
	}
	mutex_unlock(&bus->lock);
	return err < 0 ? err : err - (int)sizeof(message->header);
}
