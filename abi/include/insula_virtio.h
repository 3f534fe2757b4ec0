/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * insula_virtio.h - messages between a virtio driver in a node and a device on the base: those
 * of the virtio-msg draft (a message transport of the virtio specification,
 * VIRTIO_MSG_REVISION_1), carried by the rings of a channel. See docs/src/virtio.md.
 *
 * A message is a header and a body that depends on its id. Requests come from the node, and
 * each is answered before the next is sent, by a message with the same id and token. Events
 * have no answer. Two of the draft's events are never sent as messages: that buffers are
 * available, and that they have been used. For these each virtqueue has one of the channel's
 * event bits in each direction (insula_channel.h): the `event` of GET_VQUEUE.
 *
 * Addresses in virtqueues are physical, as everywhere. All is little endian.
 */
#ifndef INSULA_VIRTIO_H
#define INSULA_VIRTIO_H

#include <linux/types.h>

/* Longest message, header included, in bytes: the configuration comes in parts. */
#define INSULA_VIRTIO_MESSAGE_MAX	512
/* Most configuration bytes in one message. */
#define INSULA_VIRTIO_CONFIG_MAX	256
/* Most devices of a node, and most virtqueues of a device. */
#define INSULA_VIRTIO_DEVICES_MAX	32
#define INSULA_VIRTIO_QUEUES_MAX	16
/* Event bits of a channel that its virtqueues share; the highest bit is free. */
#define INSULA_VIRTIO_EVENTS_MAX	63

struct insula_virtio_header {
	__u8 kind;		/* INSULA_VIRTIO_RESPONSE and INSULA_VIRTIO_BUS, or 0 */
	__u8 id;		/* INSULA_VIRTIO_GET_*, ... */
	__u16 device;		/* number on the bus; 0 in messages of the bus */
	__u16 token;		/* of a request, repeated in its answer */
	__u16 size;		/* of the message, header included */
};

#define INSULA_VIRTIO_RESPONSE	(1U << 0)
#define INSULA_VIRTIO_BUS	(1U << 1)

/* Messages of the bus: list the devices; a device was added or removed. */
#define INSULA_VIRTIO_GET_DEVICES	0x02
#define INSULA_VIRTIO_PING		0x03
#define INSULA_VIRTIO_EVENT_DEVICE	0x40

/* Messages of a device. */
#define INSULA_VIRTIO_GET_DEVICE_INFO	0x02
#define INSULA_VIRTIO_GET_FEATURES	0x03
#define INSULA_VIRTIO_SET_FEATURES	0x04
#define INSULA_VIRTIO_GET_CONFIG	0x05
#define INSULA_VIRTIO_SET_CONFIG	0x06
#define INSULA_VIRTIO_GET_STATUS	0x07
#define INSULA_VIRTIO_SET_STATUS	0x08
#define INSULA_VIRTIO_GET_VQUEUE	0x09
#define INSULA_VIRTIO_SET_VQUEUE	0x0a
#define INSULA_VIRTIO_RESET_VQUEUE	0x0b
#define INSULA_VIRTIO_GET_SHM		0x0c
#define INSULA_VIRTIO_EVENT_CONFIG	0x40

/* GET_DEVICES. The answer is followed by a bit for each number from `first` on. */
struct insula_virtio_device_range {
	__u16 first;
	__u16 count;
};

struct insula_virtio_device_list {
	__u16 first;
	__u16 count;
	__u16 next;		/* first number of the next request; 0: no more */
};

/* PING, and its answer. */
struct insula_virtio_ping {
	__u32 data;
};

/* EVENT_DEVICE */
struct insula_virtio_event_device {
	__u16 device;
	__u16 state;		/* INSULA_VIRTIO_DEVICE_* */
};

#define INSULA_VIRTIO_DEVICE_READY	1
#define INSULA_VIRTIO_DEVICE_REMOVED	2

/* GET_DEVICE_INFO's answer. */
struct insula_virtio_device_info {
	__u32 device_id;	/* type, by the virtio specification; 0: none */
	__u32 vendor_id;
	__u32 feature_bits;	/* 64 */
	__u32 config_size;
	__u32 vqueues_max;
	__u16 admin_vqueue_first;
	__u16 admin_vqueues;
};

/* GET_FEATURES, SET_FEATURES and their answers: all 64 bits, as blocks 0 and 1 of 32. */
struct insula_virtio_blocks {
	__u32 first;
	__u32 count;
};

struct insula_virtio_features {
	struct insula_virtio_blocks blocks;
	__u32 words[2];
};

/* GET_CONFIG */
struct insula_virtio_config_range {
	__u32 offset;
	__u32 size;
};

/* SET_CONFIG, and the answer to both; the bytes follow. */
struct insula_virtio_config {
	__u32 generation;
	__u32 offset;
	__u32 size;
};

/* SET_STATUS, and the answer to it and to GET_STATUS. 0 resets the device. */
struct insula_virtio_status {
	__u32 status;
};

/* GET_VQUEUE, RESET_VQUEUE */
struct insula_virtio_vqueue_index {
	__u32 index;
};

/* Answer to GET_VQUEUE; SET_VQUEUE, where size_max and event are ignored. */
struct insula_virtio_vqueue {
	__u32 index;
	__u32 size_max;		/* 0: there is no such queue */
	__u32 size;
	__u32 event;		/* in the draft's reserved word: see above */
	__u64 descriptors;
	__u64 driver;		/* the available ring */
	__u64 device;		/* the used ring */
};

/* GET_SHM's answer. */
struct insula_virtio_shm {
	__u32 index;
	__u32 reserved;
	__u64 size;		/* 0: there is no such memory */
	__u64 start;
};

/* EVENT_CONFIG: the status or the configuration changed. */
struct insula_virtio_event_config {
	__u32 status;
	struct insula_virtio_config config;	/* the part, if known; no bytes follow */
};

#endif
