// SPDX-License-Identifier: GPL-2.0-only
/*
 * Endpoints of channels as descriptors: mapped rings, the doorbell as of an eventfd, events bound
 * to eventfds.
 *
 * User space reads and writes the rings; the module accesses only the words of the two
 * endpoints (session.c).
 */
#include "channel/endpoint_file.h"

#include <linux/err.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>

#include "channel/area.h"
#include "channel/endpoint.h"
#include "channel/session.h"
#include "compat/compat.h"
#include "mem/file.h"

static const struct file_operations endpoint_file_fops;
/* For endpoints that cannot be closed at once. */
static struct workqueue_struct *closing_queue;

/* Wait for a session, with the endpoint claimed by the caller and no lock held. */
static int endpoint_file_join_session(struct insula_endpoint *endpoint)
{
	int err;

	insula_doorbell_publish(&endpoint->doorbell, &endpoint->own->doorbell);
	smp_mb(); /* either the base sees our doorbell, or we see its session */
	err = wait_event_interruptible(endpoint->waitqueue, insula_session_try_to_join(endpoint));
	if (!err) {
		insula_session_ring(endpoint);
		return 0;
	}
	mutex_lock(&endpoint->lock);
	insula_doorbell_publish(&endpoint->doorbell, NULL);
	endpoint->open = false;
	mutex_unlock(&endpoint->lock);
	return err;
}

static void endpoint_file_rung(struct insula_endpoint *endpoint, u64 events)
{
	insula_eventfds_signal(endpoint, events);
}

static int endpoint_file_open(struct insula_endpoint *endpoint)
{
	int err = insula_endpoint_map_rings(endpoint);

	if (err)
		return err;
	if (mutex_lock_interruptible(&endpoint->lock))
		return -EINTR;
	err = insula_endpoint_claim(endpoint);
	if (!err)
		WRITE_ONCE(endpoint->rung, endpoint_file_rung);
	if (!err && endpoint->area->base) {
		err = insula_session_begin(endpoint);
		endpoint->open = !err;
	}
	mutex_unlock(&endpoint->lock);
	return err || endpoint->area->base ? err : endpoint_file_join_session(endpoint);
}

/* Set where mappings of its rings are found, or NULL. */
static void endpoint_file_set_mapping(struct insula_endpoint *endpoint,
				      struct address_space *mapping)
{
	down_write(&endpoint->area->mapping);
	endpoint->mapping = mapping;
	up_write(&endpoint->area->mapping);
}

/* Install a descriptor of an open endpoint; closing it closes the endpoint. */
static int endpoint_file_install(struct insula_endpoint *endpoint)
{
	struct file *file = insula_file_create("[insula-channel]", &endpoint_file_fops, endpoint);

	if (IS_ERR(file)) {
		insula_endpoint_release(endpoint);
		return PTR_ERR(file);
	}
	insula_area_get(endpoint->area); /* the descriptor's */
	endpoint_file_set_mapping(endpoint, file->f_mapping);
	return insula_file_install(file);
}

int insula_endpoint_file_open(struct insula_area *area, void __user *argument)
{
	struct insula_channel_open request;
	struct insula_endpoint *endpoint;
	int err;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (request.index >= area->place.count)
		return -ENOENT;
	endpoint = &area->endpoints[request.index];
	request.slots = area->place.slots;
	if (copy_to_user(argument, &request, sizeof(request)))
		return -EFAULT;
	err = endpoint_file_open(endpoint);
	return err ? err : endpoint_file_install(endpoint);
}

static ssize_t endpoint_file_read(struct file *file, char __user *to, size_t size, loff_t *position)
{
	struct insula_endpoint *endpoint = file->private_data;
	u64 count;
	int err;

	if (size < sizeof(count))
		return -EINVAL;
	while (!(count = atomic64_xchg(&endpoint->rings_count, 0))) {
		if (insula_session_disconnected(endpoint))
			return 0;
		if (file->f_flags & O_NONBLOCK)
			return -EAGAIN;
		err = wait_event_interruptible(endpoint->waitqueue,
					       atomic64_read(&endpoint->rings_count) ||
					       insula_session_disconnected(endpoint));
		if (err)
			return err;
	}
	return copy_to_user(to, &count, sizeof(count)) ? -EFAULT : sizeof(count);
}

static __poll_t endpoint_file_poll(struct file *file, struct poll_table_struct *table)
{
	struct insula_endpoint *endpoint = file->private_data;
	__poll_t events = 0;

	poll_wait(file, &endpoint->waitqueue, table);
	if (atomic64_read(&endpoint->rings_count))
		events |= EPOLLIN | EPOLLRDNORM;
	if (insula_session_disconnected(endpoint))
		events |= EPOLLHUP | EPOLLIN;
	return events;
}

/* Map a page of the rings or, once the area is unmapped, the scratch page. */
static vm_fault_t endpoint_file_fault(struct vm_fault *vmf)
{
	struct insula_endpoint *endpoint = vmf->vma->vm_file->private_data;
	struct insula_area *area = endpoint->area;
	vm_fault_t answer;
	unsigned long pfn;

	down_read(&area->mapping);
	pfn = area->scratch ? page_to_pfn(area->scratch) :
			      insula_endpoint_rings_frame(endpoint, vmf->pgoff);
	answer = vmf_insert_pfn(vmf->vma, vmf->address & PAGE_MASK, pfn);
	up_read(&area->mapping);
	return answer;
}

static const struct vm_operations_struct endpoint_file_vm_ops = {
	.fault = endpoint_file_fault,
};

static int endpoint_file_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct insula_endpoint *endpoint = file->private_data;
	u64 size = INSULA_RINGS_SIZE(endpoint->area->place.slots);
	u64 offset = (u64)vma->vm_pgoff << PAGE_SHIFT;
	u64 length = vma->vm_end - vma->vm_start;

	if (!(vma->vm_flags & VM_SHARED) || offset > size || length > size - offset)
		return -EINVAL;
	insula_vm_flags_set(vma, VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP);
	vma->vm_ops = &endpoint_file_vm_ops;
	return 0;
}

static int endpoint_file_ioctl_eventfd(struct insula_endpoint *endpoint, void __user *argument)
{
	struct insula_channel_eventfd request;
	int err;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (mutex_lock_interruptible(&endpoint->lock))
		return -EINTR;
	err = insula_eventfds_bind(endpoint, &request);
	mutex_unlock(&endpoint->lock);
	return err;
}

static int endpoint_file_ioctl_ring(struct insula_endpoint *endpoint)
{
	if (insula_session_disconnected(endpoint))
		return -EPIPE;
	insula_session_ring(endpoint);
	return 0;
}

static long endpoint_file_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct insula_endpoint *endpoint = file->private_data;

	switch (command) {
	case INSULA_CHANNEL_RING:
		return endpoint_file_ioctl_ring(endpoint);
	case INSULA_CHANNEL_EVENTFD:
		return endpoint_file_ioctl_eventfd(endpoint, (void __user *)argument);
	default:
		return -ENOTTY;
	}
}

/* Finish closing, if no ioeventfd of the endpoint is in use any more. */
static void endpoint_file_close_if_released(struct insula_endpoint *endpoint)
{
	bool now;

	mutex_lock(&endpoint->lock);
	now = endpoint->closing && !insula_eventfds_in_use(endpoint);
	if (now)
		endpoint->closing = false;
	mutex_unlock(&endpoint->lock);
	if (!now)
		return;
	insula_eventfds_clear(endpoint);
	insula_endpoint_release(endpoint);
	insula_area_put(endpoint->area);
	module_put(THIS_MODULE);
}

static void endpoint_file_close_work(struct work_struct *work)
{
	struct insula_endpoint *endpoint = container_of(work, struct insula_endpoint, close);

	endpoint_file_close_if_released(endpoint);
	insula_area_put(endpoint->area); /* insula_endpoint_file_eventfd_released()'s */
}

/*
 * A back end that outlives the holder of the descriptor, as when that was killed, may still
 * access the peer's memory: the session is left only after it has finished.
 */
static int endpoint_file_release(struct inode *inode, struct file *file)
{
	struct insula_endpoint *endpoint = file->private_data;

	__module_get(THIS_MODULE); /* the file's reference is about to go */
	endpoint_file_set_mapping(endpoint, NULL);
	insula_eventfds_disable_irqfds(endpoint);
	mutex_lock(&endpoint->lock);
	endpoint->closing = true;
	mutex_unlock(&endpoint->lock);
	endpoint_file_close_if_released(endpoint);
	return 0;
}

static const struct file_operations endpoint_file_fops = {
	.owner = THIS_MODULE,
	.read = endpoint_file_read,
	.poll = endpoint_file_poll,
	.mmap = endpoint_file_mmap,
	.unlocked_ioctl = endpoint_file_ioctl,
	.release = endpoint_file_release,
	.llseek = noop_llseek,
};

void insula_endpoint_file_eventfd_released(struct insula_endpoint *endpoint)
{
	/* The endpoint may be closed, and its reference dropped, before the work runs. */
	insula_area_get(endpoint->area);
	if (!queue_work(closing_queue, &endpoint->close))
		insula_area_put(endpoint->area); /* never the last: the bound endpoint has one */
}

void insula_endpoint_file_init(struct insula_endpoint *endpoint)
{
	INIT_WORK(&endpoint->close, endpoint_file_close_work);
	insula_eventfds_init(endpoint);
}

int insula_endpoint_files_init(void)
{
	closing_queue = alloc_workqueue("insula_channel", WQ_UNBOUND, 0);
	return closing_queue ? 0 : -ENOMEM;
}

void insula_endpoint_files_exit(void)
{
	destroy_workqueue(closing_queue);
}
