// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lists of chunks. Changes are prepared outside the list, and applied in one step.
 */
#include "mem/chunk_list.h"

#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/string.h>

void insula_chunk_list_init(struct insula_chunk_list *list)
{
	*list = (struct insula_chunk_list) { };
	spin_lock_init(&list->lock);
}

void insula_chunk_list_free(struct insula_chunk_list *list)
{
	kvfree(list->chunks);
}

int insula_chunk_list_reserve(struct insula_chunk_list *list, u32 more)
{
	u32 capacity = max(list->count + more, 2 * list->capacity);
	struct insula_chunk_entry *chunks, *had = list->chunks;

	if (more <= list->capacity - list->count)
		return 0;
	chunks = kvmalloc_array(capacity, sizeof(*chunks), GFP_KERNEL);
	if (!chunks)
		return -ENOMEM;
	if (list->count)
		memcpy(chunks, had, list->count * sizeof(*chunks));
	spin_lock(&list->lock);
	list->chunks = chunks;
	list->capacity = capacity;
	spin_unlock(&list->lock);
	kvfree(had);
	return 0;
}

void insula_chunk_list_append(struct insula_chunk_list *list,
			      const struct insula_chunk_entry *chunks,
			      u32 count)
{
	struct insula_chunk_entry *chunk;

	spin_lock(&list->lock);
	for (; count--; chunks++) {
		chunk = &list->chunks[list->count];
		*chunk = *chunks;
		chunk->offset = list->size;
		/* Both are also read without the lock. */
		WRITE_ONCE(list->count, list->count + 1);
		WRITE_ONCE(list->size, list->size + chunk->extent.size);
	}
	spin_unlock(&list->lock);
}

void insula_chunk_list_move(struct insula_chunk_list *from, struct insula_chunk_list *to)
{
	spin_lock(&from->lock);
	to->chunks = from->chunks;
	to->count = from->count;
	to->capacity = from->capacity;
	to->size = from->size;
	from->chunks = NULL;
	WRITE_ONCE(from->count, 0);
	from->capacity = 0;
	WRITE_ONCE(from->size, 0);
	spin_unlock(&from->lock);
}

u32 insula_chunk_list_cut(struct insula_chunk_list *list, u32 count)
{
	spin_lock(&list->lock);
	count = min(count, list->count);
	WRITE_ONCE(list->count, list->count - count);
	if (count)
		WRITE_ONCE(list->size, list->chunks[list->count].offset);
	spin_unlock(&list->lock);
	return count;
}

bool insula_chunk_list_get(struct insula_chunk_list *list, u32 index,
			   struct insula_chunk_entry *chunk)
{
	bool found;

	spin_lock(&list->lock);
	found = index < list->count;
	if (found)
		*chunk = list->chunks[index];
	spin_unlock(&list->lock);
	return found;
}

bool insula_chunk_list_at(struct insula_chunk_list *list, u64 offset,
			  struct insula_chunk_entry *chunk)
{
	u32 low = 0, high;
	bool found;

	spin_lock(&list->lock);
	high = list->count;
	found = offset < list->size;
	while (found && high - low > 1) {
		u32 middle = low + (high - low) / 2;

		if (list->chunks[middle].offset <= offset)
			low = middle;
		else
			high = middle;
	}
	if (found)
		*chunk = list->chunks[low];
	spin_unlock(&list->lock);
	return found;
}

bool insula_chunk_list_of(struct insula_chunk_list *list, phys_addr_t address,
			  struct insula_chunk_entry *chunk)
{
	bool found = false;
	u32 i;

	spin_lock(&list->lock);
	for (i = 0; i < list->count && !found; i++) {
		*chunk = list->chunks[i];
		found = address >= chunk->extent.start &&
			address - chunk->extent.start < chunk->extent.size;
	}
	spin_unlock(&list->lock);
	return found;
}
