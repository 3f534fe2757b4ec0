// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pages of a copy of a confined node. Protocol: insula_monitor.h.
 *
 * The copy's memory object shows a snapshot until it is written (mem/shown.c), and so does its
 * nested page table. A core that writes such a page, or whose page walk does, exits; its monitor
 * stores the address, rings, and waits. Here the page becomes the copy's own; also when the base
 * writes it. Then the nested page table is changed, and all cores are asked to flush.
 */
#include "node/copy_pages.h"

#include <linux/err.h>
#include <linux/file.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "arch/x86/doorbell.h"
#include "insula_module.h"
#include "insula_monitor.h"
#include "mem/shown.h"
#include "node/nested_table.h"

struct insula_copy_pages {
	struct insula_shown_watch watch;
	struct insula_doorbell doorbell;
	struct work_struct work;
	struct file *memory;
	struct insula_nested_table *nested;
};

static struct workqueue_struct *copier;

int insula_copy_pages_init(void)
{
	/* The cores of a copy wait for this. */
	copier = alloc_workqueue("insula_copy", WQ_UNBOUND | WQ_HIGHPRI, 0);
	return copier ? 0 : -ENOMEM;
}

void insula_copy_pages_exit(void)
{
	destroy_workqueue(copier);
}

/* A page became own: by a request, or since the base writes it. */
static int copy_pages_owned(struct insula_shown_watch *watch, u64 address, phys_addr_t frame)
{
	struct insula_copy_pages *pages = container_of(watch, struct insula_copy_pages, watch);
	int err = insula_nested_page_replace(pages->nested, address, frame);

	/*
	 * The base may write memory of a node that has ended. Of one whose cores cannot be stopped,
	 * which may use the page forever, it stays.
	 */
	return err == -EPIPE || err == -EIO ? 0 : err;
}

static u64 copy_pages_answer(const struct insula_copy_pages *pages, u64 request)
{
	int err = insula_shown_own(pages->memory, request & PAGE_MASK);

	if (!err)
		return 0;
	return err == -ENOMEM ? INSULA_PAGE_NO_MEMORY : INSULA_PAGE_FOREIGN;
}

/* A copy has the same cores for all of its run. */
static void copy_pages_work(struct work_struct *work)
{
	struct insula_copy_pages *pages = container_of(work, struct insula_copy_pages, work);
	const struct insula_monitor_cores *cores = insula_nested_table_cores(pages->nested);
	u64 *word, request;
	u32 i;

	for (i = 0; i < cores->count; i++) {
		word = &cores->core[i].area->page_request;
		request = smp_load_acquire(word); /* after what the guest has done */
		if (request & INSULA_PAGE_WANTED)
			/* The core flushes after it has seen the answer. */
			smp_store_release(word, copy_pages_answer(pages, request));
	}
}

static void copy_pages_rung(struct insula_doorbell *doorbell)
{
	struct insula_copy_pages *pages;

	pages = container_of(doorbell, struct insula_copy_pages, doorbell);
	queue_work(copier, &pages->work);
}

static void copy_pages_free(struct insula_copy_pages *pages)
{
	insula_nested_table_put(pages->nested);
	fput(pages->memory);
	kfree(pages);
}

struct insula_copy_pages *insula_copy_pages_create(struct file *memory,
						   struct insula_nested_table *nested, u64 *place)
{
	struct insula_copy_pages *pages = kzalloc(sizeof(*pages), GFP_KERNEL);
	int err;

	if (!pages)
		return ERR_PTR(-ENOMEM);
	pages->watch.owned = copy_pages_owned;
	pages->doorbell.rung = copy_pages_rung;
	INIT_WORK(&pages->work, copy_pages_work);
	pages->memory = get_file(memory);
	pages->nested = nested;
	insula_nested_table_get(nested);
	err = insula_doorbell_create(&pages->doorbell);
	if (err)
		goto free;
	err = insula_shown_set_watch(memory, &pages->watch);
	if (err) {
		insula_doorbell_destroy(&pages->doorbell);
		goto free;
	}
	insula_doorbell_publish(&pages->doorbell, place);
	return pages;
free:
	copy_pages_free(pages);
	return ERR_PTR(err);
}

void insula_copy_pages_destroy(struct insula_copy_pages *pages)
{
	if (!pages)
		return;
	insula_doorbell_destroy(&pages->doorbell);
	cancel_work_sync(&pages->work);
	insula_shown_set_watch(pages->memory, NULL);
	copy_pages_free(pages);
}
