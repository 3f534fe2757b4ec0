// SPDX-License-Identifier: GPL-2.0-only
/*
 * The module in a Linux node: memory of the base's processes that the node was lent
 * (insula_frames.h), mapped into its own.
 *
 * This kernel has no struct page of such memory, so processes get bare page table
 * entries: no reference to a page can be taken here, and undoing the mappings is all
 * that it takes to give back. Each page is also mapped for the kernel: that tells the
 * rest of it that the memory is to be cached as any other.
 */
#include "borrow.h"

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

#include "compat/compat.h"
#include "file.h"
#include "inside.h"
#include "insula_frames.h"
#include "own_end.h"

/* A page's key: its lender's number above its place with that lender, in pages. */
#define PLACE_BITS	45

struct borrowed {
	u64 start;		/* physical */
	bool writable;
	void *mapped;
};

/* An open descriptor of a lender's memory. */
struct view {
	struct list_head link;
	struct file *file;
	u32 lender;
};

/* The longest message there is: a GRANTED with as many references as it may have. */
struct granted {
	struct insula_pages runs[INSULA_FRAMES_RUNS_MAX];
	struct insula_frames frames;
};

static void serve(struct work_struct *work);
static void rung(struct insula_own_end *end, u64 events);

static struct {
	struct rw_semaphore lock;	/* views and pages; held while one is mapped */
	struct list_head views;
	struct xarray pages;
	struct insula_own_end end;	/* from here on the work's alone */
	struct work_struct work;
	struct workqueue_struct *queue;
	struct granted message;
} borrowing = {
	.lock = __RWSEM_INITIALIZER(borrowing.lock),
	.views = LIST_HEAD_INIT(borrowing.views),
	.pages = XARRAY_INIT(borrowing.pages, 0),
	.end.rung = rung,
	.work = __WORK_INITIALIZER(borrowing.work, serve),
};

static unsigned long key_of(u32 lender, u64 at)
{
	return (unsigned long)lender << PLACE_BITS | at >> PAGE_SHIFT;
}

static void free_page_of(struct borrowed *page)
{
	memunmap(page->mapped);
	kfree(page);
}

/* Locked for writing: nobody maps a page meanwhile. */
static void forget(u32 lender, u64 start, u64 size)
{
	unsigned long index, last = key_of(lender, start + size - 1);
	struct borrowed *page;
	struct view *view;

	lockdep_assert_held_write(&borrowing.lock);
	list_for_each_entry(view, &borrowing.views, link)
		if (view->lender == lender)
			unmap_mapping_range(view->file->f_mapping, start, size, 1);
	xa_for_each_range(&borrowing.pages, index, page, key_of(lender, start), last) {
		xa_erase(&borrowing.pages, index);
		free_page_of(page);
	}
}

static void forget_all(void)
{
	struct borrowed *page;
	unsigned long index;
	struct view *view;

	down_write(&borrowing.lock);
	list_for_each_entry(view, &borrowing.views, link)
		unmap_mapping_range(view->file->f_mapping, 0, 0, 1);
	xa_for_each(&borrowing.pages, index, page) {
		xa_erase(&borrowing.pages, index);
		free_page_of(page);
	}
	up_write(&borrowing.lock);
}

static int remember(u32 lender, u64 at, u64 start, bool writable)
{
	struct borrowed *page = kmalloc(sizeof(*page), GFP_KERNEL);
	int err = -ENOMEM;

	if (!page)
		return err;
	page->start = start;
	page->writable = writable;
	page->mapped = memremap(start, PAGE_SIZE, MEMREMAP_WB);
	if (page->mapped)
		err = xa_err(xa_store(&borrowing.pages, key_of(lender, at), page, GFP_KERNEL));
	if (!err)
		return 0;
	if (page->mapped)
		memunmap(page->mapped);
	kfree(page);
	return err;
}

/* What cannot be remembered is as if it had not been granted. */
static void take(const struct insula_frames *frames, const struct insula_pages *runs, u8 count)
{
	u64 at = frames->start, end = frames->start + frames->size;
	u32 run, page;
	int err = 0;

	down_write(&borrowing.lock);
	forget(frames->lender, frames->start, frames->size);
	for (run = 0; run < count; run++)
		for (page = 0; page < runs[run].count && at < end && !err; page++) {
			err = remember(frames->lender, at,
				       runs[run].start + ((u64)page << PAGE_SHIFT),
				       frames->flags & INSULA_FRAMES_WRITABLE);
			at += PAGE_SIZE;
		}
	up_write(&borrowing.lock);
	if (err)
		pr_err("cannot use what the base has lent: %d\n", err);
}

static int give(const struct insula_frames *taken)
{
	struct insula_frames returned = {
		.lender = taken->lender,
		.number = taken->number,
	};
	struct insula_message message = {
		.bytes = &returned,
		.bytes_size = sizeof(returned),
		.kind = INSULA_FRAMES_RETURNED,
	};

	down_write(&borrowing.lock);
	forget(taken->lender, taken->start, taken->size);
	up_write(&borrowing.lock);
	return insula_own_end_send(&borrowing.end, &message);
}

/* -EAGAIN: there is nothing to do. Any other error: there is no talking with the base. */
static int obey_next(void)
{
	struct insula_frames frames;
	struct insula_received received;
	void *message = &borrowing.message;
	u32 runs_size;
	int err;

	err = insula_own_end_receive(&borrowing.end, message, sizeof(borrowing.message),
				     &received);
	if (err)
		return err;
	runs_size = received.pages_count * sizeof(struct insula_pages);
	if (received.size != runs_size + sizeof(frames))
		return -EPROTO;
	memcpy(&frames, message + runs_size, sizeof(frames));
	if (!frames.size)
		return -EPROTO;
	if (received.kind == INSULA_FRAMES_GRANTED) {
		take(&frames, message, received.pages_count);
		return 0;
	}
	err = received.kind == INSULA_FRAMES_TAKEN ? give(&frames) : -EPROTO;
	return err == -EAGAIN ? -EPROTO : err;
}

static void serve(struct work_struct *work)
{
	insula_own_end_serve(&borrowing.end, obey_next, forget_all);
}

static void rung(struct insula_own_end *end, u64 events)
{
	queue_work(borrowing.queue, &borrowing.work);
}

/* What the base said before whoever asks was told of it has been heard when this returns. */
static void listen(void)
{
	queue_work(borrowing.queue, &borrowing.work);
	flush_work(&borrowing.work);
}

/* Locked. */
static struct borrowed *page_at(const struct vm_fault *vmf)
{
	const struct view *view = vmf->vma->vm_file->private_data;

	lockdep_assert_held(&borrowing.lock);
	return xa_load(&borrowing.pages, key_of(view->lender, (u64)vmf->pgoff << PAGE_SHIFT));
}

static vm_fault_t map(struct vm_fault *vmf)
{
	vm_fault_t answer = VM_FAULT_SIGBUS;
	const struct borrowed *page;

	down_read(&borrowing.lock);
	page = page_at(vmf);
	if (page)
		answer = vmf_insert_pfn(vmf->vma, vmf->address, PHYS_PFN(page->start));
	up_read(&borrowing.lock);
	return answer;
}

static vm_fault_t fault(struct vm_fault *vmf)
{
	vm_fault_t answer = map(vmf);

	if (answer != VM_FAULT_SIGBUS)
		return answer;
	listen();
	return map(vmf);
}

/* A page is mapped for reading first; then, if somebody writes, this decides. */
static vm_fault_t write_to(struct vm_fault *vmf)
{
	const struct borrowed *page;
	bool writable;

	down_read(&borrowing.lock);
	page = page_at(vmf);
	writable = page && page->writable;
	up_read(&borrowing.lock);
	return writable ? 0 : VM_FAULT_SIGBUS;
}

static const struct vm_operations_struct view_vm_ops = {
	.fault = fault,
	.pfn_mkwrite = write_to,
};

static int view_mmap(struct file *file, struct vm_area_struct *vma)
{
	if (!(vma->vm_flags & VM_SHARED) || vma->vm_pgoff >> PLACE_BITS)
		return -EINVAL;
	insula_vm_flags_set(vma, VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP);
	vma->vm_ops = &view_vm_ops;
	return 0;
}

static int view_release(struct inode *inode, struct file *file)
{
	struct view *view = file->private_data;

	down_write(&borrowing.lock);
	list_del(&view->link);
	up_write(&borrowing.lock);
	kfree(view);
	return 0;
}

static const struct file_operations view_fops = {
	.owner = THIS_MODULE,
	.mmap = view_mmap,
	.release = view_release,
};

int insula_borrow(void __user *argument)
{
	struct insula_borrow borrow;
	struct view *view;

	if (copy_from_user(&borrow, argument, sizeof(borrow)))
		return -EFAULT;
	if (!borrow.lender || borrow.lender >> (BITS_PER_LONG - PLACE_BITS) || borrow.reserved)
		return -EINVAL;
	view = kzalloc(sizeof(*view), GFP_KERNEL);
	if (!view)
		return -ENOMEM;
	view->lender = borrow.lender;
	view->file = insula_file_create("[insula-borrowed]", &view_fops, view);
	if (IS_ERR(view->file)) {
		int err = PTR_ERR(view->file);

		kfree(view);
		return err;
	}
	down_write(&borrowing.lock);
	list_add(&view->link, &borrowing.views);
	up_write(&borrowing.lock);
	return insula_file_install(view->file);
}

int insula_borrow_init(void)
{
	int err;

	borrowing.queue = alloc_ordered_workqueue("insula_borrow", WQ_MEM_RECLAIM | WQ_HIGHPRI);
	if (!borrowing.queue)
		return -ENOMEM;
	err = insula_inside_claim(&borrowing.end, INSULA_CHANNEL_FRAMES);
	if (err) {
		destroy_workqueue(borrowing.queue);
		return err;
	}
	rung(&borrowing.end, 0); /* the base may have begun a session before */
	return 0;
}

void insula_borrow_exit(void)
{
	insula_own_end_silence(&borrowing.end);
	destroy_workqueue(borrowing.queue);
	forget_all();
	insula_own_end_release(&borrowing.end);
	xa_destroy(&borrowing.pages);
}
