/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * insula_channel.h - what lies in memory that two kernels share: rings, channels
 * and doorbells. The protocol is told in docs/src/channels.md.
 *
 * The words of rings and ends are of 64 bits, each written by one side only, but for
 * struct insula_events. What a
 * peer can write is read once, as a whole word, and then checked. Memory that is
 * all zero is an empty ring, and an end that nobody has opened.
 */
#ifndef INSULA_CHANNEL_H
#define INSULA_CHANNEL_H

#include <linux/types.h>

#define INSULA_CHANNEL_MAGIC	0x4c454e4e414843ULL	/* "CHANNEL", little endian */
#define INSULA_CHANNEL_REVISION	1

/*
 * A slot of a ring. A message lies in one or more in a row; the header of its first
 * tells of it, those of the others hold only their turns.
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

/* Bits 0 to 31 of a header: the turn, which is the slot's position + 1 once it is full. */
#define INSULA_HEADER_TURN_MASK		0xffffffffULL
/* 16 bits: bytes of the message, page references included. */
#define INSULA_HEADER_SIZE_SHIFT	32
/* 8 bits: how many struct insula_pages the message begins with. */
#define INSULA_HEADER_PAGES_SHIFT	48
/* 8 bits: what the message is, between those who use the ring. */
#define INSULA_HEADER_KIND_SHIFT	56

/* What the receiver of a page reference may do with the pages. */
enum insula_right {
	INSULA_GRANTED = 1,	/* use them until they are taken back */
	INSULA_LENT = 2,	/* use them until the answer to this message */
	INSULA_MOVED = 3,	/* keep them: they are the receiver's */
};

/* A page reference: contiguous pages of 4096 bytes. */
struct insula_pages {
	__u64 start;		/* physical address of the first */
	__u32 count;
	__u32 right;		/* enum insula_right */
};

/* A ring's control words: a cache line of the consumer, one of the producers. */
struct insula_ring {
	__u64 head;		/* position of the next slot to be received, 32 bits */
	__u64 consumer_wake;	/* 0, or INSULA_WAKE_ASLEEP | position */
	__u64 consumer_reserved[6];
	__u64 producer_wake;	/* the same for want of room */
	__u64 producer_reserved[7];
};

/* A wake word of one who sleeps; its position is in bits 0 to 31. */
#define INSULA_WAKE_ASLEEP	(1ULL << 32)

/* One side of a channel. Only its own kernel writes it. */
struct insula_end {
	__u64 doorbell;		/* 0, or see INSULA_DOORBELL_* */
	__u64 session;		/* the last one that it has been in */
	__u64 open;		/* 1: it is in it now */
	__u64 reserved[5];
};

/* A doorbell: INSULA_DOORBELL_VALID | APIC id << INSULA_DOORBELL_APIC_SHIFT | vector. */
#define INSULA_DOORBELL_VALID		(1ULL << 48)
#define INSULA_DOORBELL_APIC_SHIFT	8	/* 32 bits */
#define INSULA_DOORBELL_VECTOR_MASK	0xffULL

/*
 * Events that one side has signalled to the other, which has not taken them yet: a bit
 * each. Who signals sets a bit, and rings if none was set; who is rung takes them all, by
 * exchange with 0. The one word that both write.
 */
struct insula_events {
	__u64 pending;
	__u64 reserved[7];
};

/* Events of each side of a channel. */
#define INSULA_EVENTS	64

/* The first page of a channel. */
struct insula_ends {
	struct insula_end base;
	struct insula_end node;
	struct insula_events to_base;
	struct insula_events to_node;
};

/*
 * A channel's rings begin one page behind its ends: first a page with their control
 * words, then the slots of the ring to the node, then those of the other.
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
 * The first page of an area, which ACPI device INSU0001 names in a node. Its
 * channels lie behind it one after the other, all alike.
 */
struct insula_area_header {
	__u64 magic;		/* INSULA_CHANNEL_MAGIC */
	__u32 revision;		/* INSULA_CHANNEL_REVISION */
	__u32 count;		/* of channels */
	__u32 slots;		/* of each ring */
	__u32 node;		/* INSULA_AREA_*: what the node's kernel tells of itself */
};

/*
 * When it is to reset the machine it calls who has launched it, and that does not return
 * (docs/src/node-view.md): the base need not be quick to see what it writes.
 */
#define INSULA_AREA_ENDS_BY_CALL	(1U << 0)

/*
 * Whose a channel is, by its index: those before the first of these are the programs'. The
 * others are between the base and modules in the node.
 */
#define INSULA_CHANNEL_ORDERS	8	/* insula_order.h */
#define INSULA_CHANNEL_VIRTIO	9	/* insula_virtio.h */
#define INSULA_CHANNEL_FRAMES	10	/* insula_frames.h; both ends are the kernels' own */

/* Most channels in one area. */
#define INSULA_CHANNELS_MAX	64
#define INSULA_AREA_SIZE(count, slots)	(4096ULL + (count) * INSULA_CHANNEL_SIZE(slots))

#endif
