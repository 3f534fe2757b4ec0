/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * echo FILE SLOTS: returns the messages of a file's first ring through its second, until a
 * message of kind 255. A message of kind 254 reports in its first byte's lowest bit whether
 * the peer was asleep.
 */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "channel/ring.h"

static char buffer[65536];

int main(int count, char **words)
{
	__u32 slots = count == 3 ? atoi(words[2]) : 0;
	int fd = open(words[1], O_RDWR), answer, slept = 0;
	void *rings = mmap(NULL, INSULA_RINGS_SIZE(slots), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	struct insula_rings *control = rings;
	struct insula_slot *slot = rings + INSULA_RINGS_SLOTS;
	struct insula_ring_place in = { &control->to_node, slot, slots };
	struct insula_ring_place out = { &control->to_base, slot + slots, slots };
	struct insula_received received;
	struct insula_message message;
	struct insula_consumer consumer;
	struct insula_producer producer;

	if (rings == MAP_FAILED)
		return 2;
	insula_consumer_init(&consumer, &in);
	insula_producer_init(&producer, &out);
	do {
		answer = insula_receive(&consumer, buffer, sizeof(buffer), &received);
		if (answer == -EAGAIN) {
			sched_yield();
			continue;
		}
		if (answer < 0)
			return 3;
		if (received.kind == 254)
			buffer[0] = slept;
		message = (struct insula_message) {
			.pages = (void *)buffer,
			.pages_count = received.pages_count,
			.bytes = buffer + received.pages_count * sizeof(struct insula_pages),
			.bytes_size = received.size - received.pages_count * sizeof(struct insula_pages),
			.kind = received.kind,
		};
		while ((answer = insula_send(&producer, &message)) == -EAGAIN)
			sched_yield();
		if (answer < 0)
			return 4;
		slept = answer;
	} while (answer == -EAGAIN || received.kind != 255);
	return 0;
}
