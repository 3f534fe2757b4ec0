// SPDX-License-Identifier: GPL-2.0-only
/* Memory that is used up. */
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "fault.h"

#define OBJECT_SIZE	4096

/* Pages, and objects, that are held: each begins with the address of the next. */
static void *pages, *objects;
static struct kmem_cache *cache;

static void hold(void **held, void *what)
{
	*(void **)what = *held;
	*held = what;
}

static void *hold_next(void **held)
{
	void *what = *held;

	if (what)
		*held = *(void **)what;
	return what;
}

static int memory_inject(void)
{
	unsigned long count = global_zone_page_state(NR_FREE_PAGES) * 2 / 3;

	while (count--) {
		unsigned long page = __get_free_page(GFP_KERNEL | __GFP_NORETRY);

		if (!page)
			break;
		hold(&pages, (void *)page);
	}
	return 0;
}

static void memory_undo(void)
{
	void *page;

	while ((page = hold_next(&pages)))
		free_page((unsigned long)page);
}

static int slab_inject(void)
{
	unsigned long count = global_zone_page_state(NR_FREE_PAGES) / 3;

	cache = kmem_cache_create("insula_fault", OBJECT_SIZE, 0, 0, NULL);
	if (!cache)
		return -ENOMEM;
	while (count--) {
		void *object = kmem_cache_alloc(cache, GFP_KERNEL | __GFP_NORETRY);

		if (!object)
			break;
		hold(&objects, object);
	}
	return 0;
}

static void slab_undo(void)
{
	void *object;

	while ((object = hold_next(&objects)))
		kmem_cache_free(cache, object);
	kmem_cache_destroy(cache);
}

const struct fault memory_faults[] = {
	{ "memory", memory_inject, memory_undo },
	{ "slab", slab_inject, slab_undo },
	{ }
};
