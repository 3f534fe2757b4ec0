// SPDX-License-Identifier: GPL-2.0-only
/*
 * The ends of rings in memory that a peer may change at any moment: words are read
 * and written whole, each read once, and what they say is checked. Every place in
 * the ring is masked, so no value leads outside.
 *
 * Of the kernel this needs only its barriers and integers: channel/tests/c_ring.rs
 * compiles it for the host and lets it talk with the Rust ends.
 */
#include "ring.h"

#include <linux/compiler.h>
#include <linux/errno.h>
#include <linux/export.h>
#include <linux/minmax.h>
#include <linux/string.h>
#include <linux/types.h>

#include <asm/barrier.h>

#define WORDS_PER_SLOT	(INSULA_SLOT_BYTES / sizeof(u64))

static struct insula_slot *slot_at(const struct insula_ring_place *ring, u32 position)
{
	return &ring->slots[position & (ring->count - 1)];
}

/* A word of the bytes of the message whose first slot is at a position. */
static u64 *word_at(const struct insula_ring_place *ring, u32 position, u32 word)
{
	return &slot_at(ring, position + word / WORDS_PER_SLOT)->words[word % WORDS_PER_SLOT];
}

static u32 slots_of(u32 size)
{
	return size ? (size + INSULA_SLOT_BYTES - 1) / INSULA_SLOT_BYTES : 1;
}

/* Copy bytes in, of which `at` are there already: a multiple of a word. */
static void write_bytes(const struct insula_ring_place *ring, u32 position, u32 at,
			const void *from, u32 size)
{
	u32 done, piece;
	u64 value;

	for (done = 0; done < size; done += piece) {
		piece = min_t(u32, size - done, sizeof(value));
		value = 0;
		memcpy(&value, from + done, piece);
		WRITE_ONCE(*word_at(ring, position, (at + done) / sizeof(value)), value);
	}
}

static void read_bytes(const struct insula_ring_place *ring, u32 position, void *to, u32 size)
{
	u32 done, piece;
	u64 value;

	for (done = 0; done < size; done += piece) {
		piece = min_t(u32, size - done, sizeof(value));
		value = READ_ONCE(*word_at(ring, position, done / sizeof(value)));
		memcpy(to + done, &value, piece);
	}
}

/* Whether the peer sleeps at one of `count` positions from `from` on, which we passed. */
static int peer_sleeps(const u64 *wake_word, u32 from, u32 count)
{
	u64 wake;

	smp_mb(); /* our step, before a look whether it is waited for */
	wake = READ_ONCE(*wake_word);
	return (wake & INSULA_WAKE_ASLEEP) && (u32)wake - from < count;
}

static void say_asleep(u64 *wake_word, u32 position)
{
	WRITE_ONCE(*wake_word, INSULA_WAKE_ASLEEP | position);
	smp_mb(); /* before a last look at what we wait for */
}

void insula_producer_init(struct insula_producer *producer, const struct insula_ring_place *ring)
{
	*producer = (struct insula_producer) { .ring = *ring };
}

/* The consumer's head, which must lie between what it was and the tail. */
static int fresh_head(const struct insula_producer *producer, u32 *head)
{
	u64 word = smp_load_acquire(&producer->ring.control->head); /* its slots have been read */

	if (word > U32_MAX || (u32)word - producer->head > producer->tail - producer->head)
		return -EPROTO;
	*head = word;
	return 0;
}

static bool fits(const struct insula_producer *producer, u32 slots)
{
	return slots <= producer->ring.count - (producer->tail - producer->head);
}

static int make_room(struct insula_producer *producer, u32 slots)
{
	int err;

	if (fits(producer, slots))
		return 0;
	err = fresh_head(producer, &producer->head);
	if (err)
		return err;
	return fits(producer, slots) ? 0 : -EAGAIN;
}

int insula_send(struct insula_producer *producer, const struct insula_message *message)
{
	const struct insula_ring_place *ring = &producer->ring;
	u32 pages_size = message->pages_count * sizeof(*message->pages);
	u32 size = pages_size + message->bytes_size;
	u32 slots = slots_of(size), position = producer->tail, i;
	u64 header;
	int err;

	if (size > U16_MAX || slots > ring->count)
		return -EMSGSIZE;
	err = make_room(producer, slots);
	if (err)
		return err;
	producer->tail += slots;
	for (i = 1; i < slots; i++)
		WRITE_ONCE(slot_at(ring, position + i)->header, (u32)(position + i + 1));
	write_bytes(ring, position, 0, message->pages, pages_size);
	write_bytes(ring, position, pages_size, message->bytes, message->bytes_size);
	header = (u32)(position + 1) | (u64)size << INSULA_HEADER_SIZE_SHIFT |
		 (u64)message->pages_count << INSULA_HEADER_PAGES_SHIFT |
		 (u64)message->kind << INSULA_HEADER_KIND_SHIFT;
	smp_store_release(&slot_at(ring, position)->header, header); /* its bytes */
	return peer_sleeps(&ring->control->consumer_wake, position, slots);
}

int insula_producer_prepare_to_sleep(struct insula_producer *producer)
{
	u32 head;
	int err;

	say_asleep(&producer->ring.control->producer_wake, producer->head);
	err = fresh_head(producer, &head);
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
static bool next_header(const struct insula_consumer *consumer, u64 *header)
{
	const struct insula_slot *slot = slot_at(&consumer->ring, consumer->head);

	*header = smp_load_acquire(&slot->header); /* the message's bytes */
	return (u32)*header == consumer->head + 1;
}

int insula_receive(struct insula_consumer *consumer, void *buffer, u32 capacity,
		   struct insula_received *received)
{
	const struct insula_ring_place *ring = &consumer->ring;
	u32 slots, from = consumer->head;
	u64 header;

	if (!next_header(consumer, &header))
		return -EAGAIN;
	received->size = header >> INSULA_HEADER_SIZE_SHIFT;
	received->pages_count = header >> INSULA_HEADER_PAGES_SHIFT;
	received->kind = header >> INSULA_HEADER_KIND_SHIFT;
	slots = slots_of(received->size);
	if (slots > ring->count ||
	    received->pages_count * sizeof(struct insula_pages) > received->size)
		return -EPROTO;
	if (received->size > capacity)
		return -EMSGSIZE;
	read_bytes(ring, from, buffer, received->size);
	consumer->head += slots;
	smp_store_release(&ring->control->head, consumer->head); /* its bytes have been read */
	return peer_sleeps(&ring->control->producer_wake, from, slots);
}

int insula_consumer_prepare_to_sleep(struct insula_consumer *consumer)
{
	u64 header;

	say_asleep(&consumer->ring.control->consumer_wake, consumer->head);
	return !next_header(consumer, &header);
}
EXPORT_SYMBOL_GPL(insula_consumer_prepare_to_sleep);

void insula_consumer_stay_awake(struct insula_consumer *consumer)
{
	WRITE_ONCE(consumer->ring.control->consumer_wake, 0);
}
EXPORT_SYMBOL_GPL(insula_consumer_stay_awake);
