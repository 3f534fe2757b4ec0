// SPDX-License-Identifier: GPL-2.0-only
/*
 * Guest side of grants: in a Linux node, maps memory granted by the base's processes
 * (insula_grant.h) into its own.
 *
 * This kernel has no struct page for such memory, so processes get raw PFN mappings: no
 * reference to a page can be taken here, and unmapping is all that a revocation needs. Each
 * page is also mapped for the kernel, which makes PFN mappings of it cached.
 */
#include "guest/grant_import.h"

#include <linux/err.h>
#include <linux/io.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/rwsem.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "channel/endpoint.h"
#include "compat/compat.h"
#include "guest/guest.h"
#include "insula_grant.h"
#include "mem/file.h"

/* A page's key: the grant table's id above the page offset in that table. */
#define OFFSET_BITS	45

struct imported_page {
	u64 start;		/* physical */
	bool writable;
	void *mapped;
};

/* An open descriptor of an imported grant table. */
struct view {
	struct list_head link;
	struct file *file;
	u32 table;
};

/* Buffer for the longest message: a GRANTED with the most page references. */
struct granted {
	struct insula_pages runs[INSULA_GRANT_RUNS_MAX];
	struct insula_grant_message body;
};

static void grant_import_serve(struct work_struct *work);

static struct {
	struct rw_semaphore lock;	/* views and pages; read: a page is being mapped */
	struct list_head views;
	struct xarray pages;
	struct insula_endpoint *endpoint;	/* from here on used by `work` only */
	struct work_struct work;
	struct workqueue_struct *queue;
	struct granted message;
} imports = {
	.lock = __RWSEM_INITIALIZER(imports.lock),
	.views = LIST_HEAD_INIT(imports.views),
	.pages = XARRAY_INIT(imports.pages, 0),
	.work = __WORK_INITIALIZER(imports.work, grant_import_serve),
};

static unsigned long grant_import_key(u32 table, u64 at)
{
	return (unsigned long)table << OFFSET_BITS | at >> PAGE_SHIFT;
}

static void grant_import_free_page(struct imported_page *page)
{
	memunmap(page->mapped);
	kfree(page);
}

/* Locked for writing: no page is being mapped. */
static void grant_import_remove(u32 table, u64 start, u64 size)
{
	unsigned long index, last = grant_import_key(table, start + size - 1);
	struct imported_page *page;
	struct view *view;

	lockdep_assert_held_write(&imports.lock);
	list_for_each_entry(view, &imports.views, link)
		if (view->table == table)
			unmap_mapping_range(view->file->f_mapping, start, size, 1);
	xa_for_each_range(&imports.pages, index, page, grant_import_key(table, start), last) {
		xa_erase(&imports.pages, index);
		grant_import_free_page(page);
	}
}

static void grant_import_remove_all(void)
{
	struct imported_page *page;
	unsigned long index;
	struct view *view;

	down_write(&imports.lock);
	list_for_each_entry(view, &imports.views, link)
		unmap_mapping_range(view->file->f_mapping, 0, 0, 1);
	xa_for_each(&imports.pages, index, page) {
		xa_erase(&imports.pages, index);
		grant_import_free_page(page);
	}
	up_write(&imports.lock);
}

static int grant_import_insert(u32 table, u64 at, u64 start, bool writable)
{
	struct imported_page *page = kmalloc(sizeof(*page), GFP_KERNEL);
	int err = -ENOMEM;

	if (!page)
		return err;
	page->start = start;
	page->writable = writable;
	page->mapped = memremap(start, PAGE_SIZE, MEMREMAP_WB);
	if (page->mapped)
		err = xa_err(xa_store(&imports.pages, grant_import_key(table, at), page,
				      GFP_KERNEL));
	if (!err)
		return 0;
	if (page->mapped)
		memunmap(page->mapped);
	kfree(page);
	return err;
}

/* Pages that cannot be recorded stay unusable, as if not granted. */
static void grant_import_add(const struct insula_grant_message *body,
			     const struct insula_pages *runs, u8 count)
{
	u64 at = body->start, end = body->start + body->size;
	u32 run, page;
	int err = 0;

	down_write(&imports.lock);
	grant_import_remove(body->table, body->start, body->size);
	for (run = 0; run < count; run++)
		for (page = 0; page < runs[run].count && at < end && !err; page++) {
			err = grant_import_insert(body->table, at,
						  runs[run].start + ((u64)page << PAGE_SHIFT),
						  body->flags & INSULA_GRANT_WRITABLE);
			at += PAGE_SIZE;
		}
	up_write(&imports.lock);
	if (err)
		pr_err("cannot use memory granted by the base: %d\n", err);
}

static int grant_import_revoke(const struct insula_grant_message *revoking)
{
	struct insula_grant_message reply = {
		.table = revoking->table,
		.sequence = revoking->sequence,
	};
	struct insula_message message = {
		.bytes = &reply,
		.bytes_size = sizeof(reply),
		.kind = INSULA_GRANT_REVOKED,
	};

	down_write(&imports.lock);
	grant_import_remove(revoking->table, revoking->start, revoking->size);
	up_write(&imports.lock);
	return insula_endpoint_send(imports.endpoint, &message);
}

/* -EAGAIN: no message. Any other error: leave the session. */
static int grant_import_handle_next(void)
{
	struct insula_grant_message body;
	struct insula_received received;
	void *message = &imports.message;
	u32 runs_size;
	int err;

	err = insula_endpoint_receive(imports.endpoint, message, sizeof(imports.message),
				      &received);
	if (err)
		return err;
	runs_size = received.pages_count * sizeof(struct insula_pages);
	if (received.size != runs_size + sizeof(body))
		return -EPROTO;
	memcpy(&body, message + runs_size, sizeof(body));
	if (!body.size)
		return -EPROTO;
	if (received.kind == INSULA_GRANT_GRANTED) {
		grant_import_add(&body, message, received.pages_count);
		return 0;
	}
	err = received.kind == INSULA_GRANT_REVOKING ? grant_import_revoke(&body) : -EPROTO;
	return err == -EAGAIN ? -EPROTO : err;
}

static void grant_import_serve(struct work_struct *work)
{
	insula_endpoint_serve(imports.endpoint, grant_import_handle_next, grant_import_remove_all);
}

static void grant_import_rung(struct insula_endpoint *endpoint, u64 events)
{
	queue_work(imports.queue, &imports.work);
}

/* Process all messages that the base has sent so far. */
static void grant_import_sync(void)
{
	queue_work(imports.queue, &imports.work);
	flush_work(&imports.work);
}

/* The page of a fault, or NULL. Locked. */
static struct imported_page *grant_import_page(const struct vm_fault *vmf)
{
	const struct view *view = vmf->vma->vm_file->private_data;

	lockdep_assert_held(&imports.lock);
	return xa_load(&imports.pages,
		       grant_import_key(view->table, (u64)vmf->pgoff << PAGE_SHIFT));
}

static vm_fault_t grant_import_map(struct vm_fault *vmf)
{
	vm_fault_t answer = VM_FAULT_SIGBUS;
	const struct imported_page *page;

	down_read(&imports.lock);
	page = grant_import_page(vmf);
	if (page)
		answer = vmf_insert_pfn(vmf->vma, vmf->address, PHYS_PFN(page->start));
	up_read(&imports.lock);
	return answer;
}

static vm_fault_t grant_import_fault(struct vm_fault *vmf)
{
	vm_fault_t answer = grant_import_map(vmf);

	if (answer != VM_FAULT_SIGBUS)
		return answer;
	grant_import_sync();
	return grant_import_map(vmf);
}

/* The first write to a page, which is mapped read-only at first. */
static vm_fault_t grant_import_mkwrite(struct vm_fault *vmf)
{
	const struct imported_page *page;
	bool writable;

	down_read(&imports.lock);
	page = grant_import_page(vmf);
	writable = page && page->writable;
	up_read(&imports.lock);
	return writable ? 0 : VM_FAULT_SIGBUS;
}

static const struct vm_operations_struct view_vm_ops = {
	.fault = grant_import_fault,
	.pfn_mkwrite = grant_import_mkwrite,
};

static int grant_import_mmap(struct file *file, struct vm_area_struct *vma)
{
	if (!(vma->vm_flags & VM_SHARED) || vma->vm_pgoff >> OFFSET_BITS)
		return -EINVAL;
	insula_vm_flags_set(vma, VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP);
	vma->vm_ops = &view_vm_ops;
	return 0;
}

static int grant_import_release(struct inode *inode, struct file *file)
{
	struct view *view = file->private_data;

	down_write(&imports.lock);
	list_del(&view->link);
	up_write(&imports.lock);
	kfree(view);
	return 0;
}

static const struct file_operations view_fops = {
	.owner = THIS_MODULE,
	.mmap = grant_import_mmap,
	.release = grant_import_release,
};

int insula_grant_import(void __user *argument)
{
	struct insula_grant_import request;
	struct view *view;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (!request.table || request.table >> (BITS_PER_LONG - OFFSET_BITS) || request.reserved)
		return -EINVAL;
	view = kzalloc(sizeof(*view), GFP_KERNEL);
	if (!view)
		return -ENOMEM;
	view->table = request.table;
	view->file = insula_file_create("[insula-grant-import]", &view_fops, view);
	if (IS_ERR(view->file)) {
		int err = PTR_ERR(view->file);

		kfree(view);
		return err;
	}
	down_write(&imports.lock);
	list_add(&view->link, &imports.views);
	up_write(&imports.lock);
	return insula_file_install(view->file);
}

int insula_grant_import_init(void)
{
	imports.queue = alloc_ordered_workqueue("insula_grant_import", WQ_MEM_RECLAIM | WQ_HIGHPRI);
	if (!imports.queue)
		return -ENOMEM;
	imports.endpoint = insula_guest_endpoint_open(INSULA_CHANNEL_GRANTS);
	if (IS_ERR(imports.endpoint)) {
		destroy_workqueue(imports.queue);
		return PTR_ERR(imports.endpoint);
	}
	insula_endpoint_enable(imports.endpoint, grant_import_rung);
	grant_import_rung(imports.endpoint, 0); /* the base may have begun a session already */
	return 0;
}

void insula_grant_import_exit(void)
{
	insula_endpoint_disable(imports.endpoint);
	destroy_workqueue(imports.queue);
	grant_import_remove_all();
	insula_endpoint_release(imports.endpoint);
	xa_destroy(&imports.pages);
}
