// SPDX-License-Identifier: GPL-2.0-only
/*
 * Producer and consumer of rings in memory that the peer may change at any time: words are read
 * and written whole, each is read once, and then checked. Every position is masked, so no value
 * leads outside the ring.
 *
 * This file needs only barriers and integer types of the kernel: channel/tests/c_ring.rs
 * compiles it for the host and tests it against the Rust implementation.
 */
#include "channel/ring.h"

#include <linux/compiler.h>
#include <linux/errno.h>
#include <linux/export.h>
#include <linux/minmax.h>
#include <linux/string.h>
#include <linux/types.h>

#include <asm/barrier.h>

#define WORDS_PER_SLOT	(INSULA_SLOT_BYTES / sizeof(u64))

static struct insula_slot *ring_slot(const struct insula_ring_place *ring, u32 position)
{
	return &ring->slots[position & (ring->count - 1)];
}

/* Word number `word` of the message whose first slot is at `position`. */
static u64 *ring_word(const struct insula_ring_place *ring, u32 position, u32 word)
{
	return &ring_slot(ring, position + word / WORDS_PER_SLOT)->words[word % WORDS_PER_SLOT];
}

static u32 ring_slots_needed(u32 size)
{
	return size ? (size + INSULA_SLOT_BYTES - 1) / INSULA_SLOT_BYTES : 1;
}

/* Copy bytes into a message at offset `at`, a multiple of a word. */
static void ring_write(const struct insula_ring_place *ring, u32 position, u32 at,
		       const void *from, u32 size)
{
	u32 done, piece;
	u64 value;

	for (done = 0; done < size; done += piece) {
		piece = min_t(u32, size - done, sizeof(value));
		value = 0;
		memcpy(&value, from + done, piece);
		WRITE_ONCE(*ring_word(ring, position, (at + done) / sizeof(value)), value);
	}
}

static void ring_read(const struct insula_ring_place *ring, u32 position, void *to, u32 size)
{
	u32 done, piece;
	u64 value;

	for (done = 0; done < size; done += piece) {
		piece = min_t(u32, size - done, sizeof(value));
		value = READ_ONCE(*ring_word(ring, position, done / sizeof(value)));
		memcpy(to + done, &value, piece);
	}
}

/* Whether the peer sleeps at one of the `count` positions from `from` on, just passed. */
static int ring_peer_sleeps(const u64 *wake_word, u32 from, u32 count)
{
	u64 wake;

	smp_mb(); /* publish our step before checking whether the peer waits for it */
	wake = READ_ONCE(*wake_word);
	return (wake & INSULA_WAKE_ASLEEP) && (u32)wake - from < count;
}

static void ring_set_asleep(u64 *wake_word, u32 position)
{
	WRITE_ONCE(*wake_word, INSULA_WAKE_ASLEEP | position);
	smp_mb(); /* before checking the wait condition once more */
}

void insula_producer_init(struct insula_producer *producer, const struct insula_ring_place *ring)
{
	*producer = (struct insula_producer) { .ring = *ring };
}

/* Read the consumer's head, which must lie between its last value and the tail. */
static int ring_fresh_head(const struct insula_producer *producer, u32 *head)
{
	u64 word = smp_load_acquire(&producer->ring.control->head); /* then its slots are free */

	if (word > U32_MAX || (u32)word - producer->head > producer->tail - producer->head)
		return -EPROTO;
	*head = word;
	return 0;
}

static bool ring_fits(const struct insula_producer *producer, u32 slots)
{
	return slots <= producer->ring.count - (producer->tail - producer->head);
}

static int ring_make_room(struct insula_producer *producer, u32 slots)
{
	int err;

	if (ring_fits(producer, slots))
		return 0;
	err = ring_fresh_head(producer, &producer->head);
	if (err)
		return err;
	return ring_fits(producer, slots) ? 0 : -EAGAIN;
}

int insula_send(struct insula_producer *producer, const struct insula_message *message)
{
	const struct insula_ring_place *ring = &producer->ring;
	u32 pages_size = message->pages_count * sizeof(*message->pages);
	u32 size = pages_size + message->bytes_size;
	u32 slots = ring_slots_needed(size), position = producer->tail, i;
	u64 header;
	int err;

	if (size > U16_MAX || slots > ring->count)
		return -EMSGSIZE;
	err = ring_make_room(producer, slots);
	if (err)
		return err;
	producer->tail += slots;
	for (i = 1; i < slots; i++)
		WRITE_ONCE(ring_slot(ring, position + i)->header, (u32)(position + i + 1));
	ring_write(ring, position, 0, message->pages, pages_size);
	ring_write(ring, position, pages_size, message->bytes, message->bytes_size);
	header = (u32)(position + 1) | (u64)size << INSULA_HEADER_SIZE_SHIFT |
		 (u64)message->pages_count << INSULA_HEADER_PAGES_SHIFT |
		 (u64)message->kind << INSULA_HEADER_KIND_SHIFT;
	smp_store_release(&ring_slot(ring, position)->header, header); /* after its bytes */
	return ring_peer_sleeps(&ring->control->consumer_wake, position, slots);
}

int insula_producer_prepare_to_sleep(struct insula_producer *producer)
{
	u32 head;
	int err;

	ring_set_asleep(&producer->ring.control->producer_wake, producer->head);
	err = ring_fresh_head(producer, &head);
	return err ? err : head == producer->head;
}

void insula_producer_stay_awake(struct insula_producer *producer)
{
	WRITE_ONCE(producer->ring.control->producer_wake, 0);
}

void insula_consumer_init(struct insula_consumer *consumer, const struct insula_ring_place *ring)
{
	*consumer = (struct insula_consumer) { .ring = *ring };
}

/* The header of the next message, if there is one. */
static bool ring_next_header(const struct insula_consumer *consumer, u64 *header)
{
	const struct insula_slot *slot = ring_slot(&consumer->ring, consumer->head);

	*header = smp_load_acquire(&slot->header); /* before the message's bytes */
	return (u32)*header == consumer->head + 1;
}

int insula_receive(struct insula_consumer *consumer, void *buffer, u32 capacity,
		   struct insula_received *received)
{
	const struct insula_ring_place *ring = &consumer->ring;
	u32 slots, from = consumer->head;
	u64 header;

	if (!ring_next_header(consumer, &header))
		return -EAGAIN;
	received->size = header >> INSULA_HEADER_SIZE_SHIFT;
	received->pages_count = header >> INSULA_HEADER_PAGES_SHIFT;
	received->kind = header >> INSULA_HEADER_KIND_SHIFT;
	slots = ring_slots_needed(received->size);
	if (slots > ring->count ||
	    received->pages_count * sizeof(struct insula_pages) > received->size)
		return -EPROTO;
	if (received->size > capacity)
		return -EMSGSIZE;
	ring_read(ring, from, buffer, received->size);
	consumer->head += slots;
	smp_store_release(&ring->control->head, consumer->head); /* after reading its bytes */
	return ring_peer_sleeps(&ring->control->producer_wake, from, slots);
}

int insula_consumer_prepare_to_sleep(struct insula_consumer *consumer)
{
	u64 header;

	ring_set_asleep(&consumer->ring.control->consumer_wake, consumer->head);
	return !ring_next_header(consumer, &header);
}
EXPORT_SYMBOL_GPL(insula_consumer_prepare_to_sleep);

void insula_consumer_stay_awake(struct insula_consumer *consumer)
{
	WRITE_ONCE(consumer->ring.control->consumer_wake, 0);
}
EXPORT_SYMBOL_GPL(insula_consumer_stay_awake);
