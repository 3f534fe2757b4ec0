/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * insula_channel.h - memory shared by two kernels: rings, channels and doorbells. Protocol:
 * docs/src/channels.md
 *
 * The words of rings and endpoints have 64 bits, each written by one side only, except those
 * of struct insula_events. A word that the peer can write is read once and then checked.
 * Memory that is all zero is an empty ring, and an endpoint that was never opened.
 */
#ifndef INSULA_CHANNEL_H
#define INSULA_CHANNEL_H

#include <linux/types.h>

#define INSULA_CHANNEL_MAGIC	0x4c454e4e414843ULL	/* "CHANNEL", little endian */
#define INSULA_CHANNEL_REVISION	1

/*
 * A slot of a ring. A message occupies one or more consecutive slots; the header of the first
 * describes it, those of the others hold only their sequence numbers.
 */
struct insula_slot {
	__u64 header;		/* see INSULA_HEADER_* */
	__u64 words[7];		/* bytes of the message */
};

/* Bytes of a message in each slot. */
#define INSULA_SLOT_BYTES	56
/* Fewest and most slots of a ring; their number is a power of two. */
#define INSULA_SLOTS_MIN	64
#define INSULA_SLOTS_MAX	32768

/* Bits 0 to 31 of a header: the sequence number, the slot's position + 1 once it is full. */
#define INSULA_HEADER_SEQUENCE_MASK		0xffffffffULL
/* 16 bits: bytes of the message, page references included. */
#define INSULA_HEADER_SIZE_SHIFT	32
/* 8 bits: number of struct insula_pages at the start of the message. */
#define INSULA_HEADER_PAGES_SHIFT	48
/* 8 bits: kind of message, defined by the users of the ring. */
#define INSULA_HEADER_KIND_SHIFT	56

/* Rights of the receiver of a page reference. */
enum insula_right {
	INSULA_GRANTED = 1,	/* use the pages until they are revoked */
	INSULA_UNTIL_REPLY = 2,	/* use them until the reply to this message */
	INSULA_MOVED = 3,	/* keep them */
};

/* A page reference: contiguous pages of 4096 bytes. */
struct insula_pages {
	__u64 start;		/* physical address of the first */
	__u32 count;
	__u32 right;		/* enum insula_right */
};

/* Control words of a ring: a cache line of the consumer, one of the producers. */
struct insula_ring {
	__u64 head;		/* position of the next slot to receive, 32 bits */
	__u64 consumer_wake;	/* 0, or INSULA_WAKE_ASLEEP | position */
	__u64 consumer_reserved[6];
	__u64 producer_wake;	/* the same, waiting for room */
	__u64 producer_reserved[7];
};

/* Flag of a wake word whose writer sleeps; its position is in bits 0 to 31. */
#define INSULA_WAKE_ASLEEP	(1ULL << 32)

/* State of an endpoint of a channel, written by its own kernel only. */
struct insula_endpoint_state {
	__u64 doorbell;		/* 0, or see INSULA_DOORBELL_* */
	__u64 session;		/* the last one that it joined */
	__u64 open;		/* 1: it is in that session now */
	__u64 reserved[5];
};

/* A doorbell: INSULA_DOORBELL_VALID | APIC id << INSULA_DOORBELL_APIC_SHIFT | vector. */
#define INSULA_DOORBELL_VALID		(1ULL << 48)
#define INSULA_DOORBELL_APIC_SHIFT	8	/* 32 bits */
#define INSULA_DOORBELL_VECTOR_MASK	0xffULL
/*
 * Set in the APIC id of a doorbell that a copy of a node is told: the base's cores may have ids
 * that the copy knows as its own. Its monitor clears it. Alone, without VALID, it says that the
 * node is a copy, whose base has not begun a session yet.
 */
#define INSULA_DOORBELL_FOREIGN		(1ULL << (8 + 31))

/*
 * Pending events from one side to the other, as bits. The signalling side sets a bit and rings
 * the doorbell if none was set; the other takes them all, by exchange with 0. Both write it.
 */
struct insula_events {
	__u64 pending;
	__u64 reserved[7];
};

/* Events of each side of a channel. */
#define INSULA_EVENTS	64

/* The first page of a channel. */
struct insula_endpoints {
	struct insula_endpoint_state base;
	struct insula_endpoint_state node;
	struct insula_events to_base;
	struct insula_events to_node;
};

/*
 * A channel's rings start one page after its endpoints: first a page with their control words,
 * then the slots of the ring to the node, then those of the ring to the base.
 */
#define INSULA_CHANNEL_RINGS	4096
struct insula_rings {
	struct insula_ring to_node;
	struct insula_ring to_base;
};

#define INSULA_RINGS_SLOTS	4096
#define INSULA_RINGS_SIZE(slots)	(4096ULL + 2 * 64ULL * (slots))
#define INSULA_CHANNEL_SIZE(slots)	(4096ULL + INSULA_RINGS_SIZE(slots))

/*
 * The first page of a channel area, which ACPI device INSU0001 describes in a node. Channels of
 * equal size follow it.
 */
struct insula_area_header {
	__u64 magic;		/* INSULA_CHANNEL_MAGIC */
	__u32 revision;		/* INSULA_CHANNEL_REVISION */
	__u32 count;		/* of channels */
	__u32 slots;		/* of each ring */
	__u32 node;		/* INSULA_AREA_*: flags set by the node's kernel */
};

/*
 * To reset the machine the node's kernel makes a call that does not return
 * (docs/src/node-view.md): so the base may poll for its end less often.
 */
#define INSULA_AREA_RESETS_BY_CALL	(1U << 0)

/* Indices of channels used by modules in the node. Lower ones are free for programs. */
#define INSULA_CHANNEL_HOTPLUG	8	/* insula_hotplug.h */
#define INSULA_CHANNEL_VIRTIO	9	/* insula_virtio.h */
#define INSULA_CHANNEL_GRANTS	10	/* insula_grant.h; both endpoints are the kernels' */

/* Most channels in one area. */
#define INSULA_CHANNELS_MAX	64
#define INSULA_AREA_SIZE(count, slots)	(4096ULL + (count) * INSULA_CHANNEL_SIZE(slots))

#endif
