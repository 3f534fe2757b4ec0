// SPDX-License-Identifier: GPL-2.0-only
/*
 * Endpoints of channels as descriptors: mapped rings, a doorbell in each direction, sessions.
 *
 * User space reads and writes the rings; the module accesses only the words of the two
 * endpoints (session.c).
 */
#include "channel/channel.h"

#include <linux/err.h>
#include <linux/file.h>
#include <linux/gfp.h>
#include <linux/kref.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "channel/kernel_endpoint.h"
#include "channel/session.h"
#include "compat/compat.h"
#include "mem/file.h"
#include "mem/memory.h"

static const struct file_operations channel_fops;
/* For endpoints that cannot be closed at once. */
static struct workqueue_struct *closing_queue;

int insula_area_check(u32 count, u32 slots)
{
	if (!count || count > INSULA_CHANNELS_MAX || slots < INSULA_SLOTS_MIN ||
	    slots > INSULA_SLOTS_MAX || !is_power_of_2(slots))
		return -EINVAL;
	return 0;
}

static void channel_rung(struct insula_doorbell *doorbell)
{
	struct insula_channel *channel = container_of(doorbell, struct insula_channel, doorbell);
	u64 events = READ_ONCE(*channel->events_in) ? xchg(channel->events_in, 0) : 0;

	if (channel->user) {
		channel->user->rung(channel->user, events);
		return;
	}
	insula_eventfds_signal(&channel->eventfds, events);
	atomic64_inc(&channel->rings_count);
	wake_up_interruptible_poll(&channel->waitqueue, EPOLLIN);
}

static void channel_signal_bound(struct insula_eventfds *eventfds, u32 event)
{
	insula_session_signal(container_of(eventfds, struct insula_channel, eventfds), event);
}

static void channel_eventfd_released(struct insula_eventfds *eventfds)
{
	struct insula_channel *channel = container_of(eventfds, struct insula_channel, eventfds);

	/* The endpoint may be closed, and its reference dropped, before the work runs. */
	insula_area_get(channel->area);
	if (!queue_work(closing_queue, &channel->close))
		insula_area_put(channel->area); /* never the last: the bound endpoint has one */
}

static void channel_close_work(struct work_struct *work);

static void channel_set_up(struct insula_channel *channel, struct insula_area *area, u32 index)
{
	u64 offset = INSULA_AREA_SIZE(index, area->place.slots);
	struct insula_endpoints *endpoints = area->place.memory + offset;

	channel->area = area;
	channel->own = area->base ? &endpoints->base : &endpoints->node;
	channel->peer = area->base ? &endpoints->node : &endpoints->base;
	channel->events_in = area->base ? &endpoints->to_base.pending : &endpoints->to_node.pending;
	channel->events_out = area->base ? &endpoints->to_node.pending :
					   &endpoints->to_base.pending;
	channel->rings = (void *)endpoints + INSULA_CHANNEL_RINGS;
	channel->rings_start = area->place.start + offset + INSULA_CHANNEL_RINGS;
	channel->doorbell.rung = channel_rung;
	channel->eventfds.signal = channel_signal_bound;
	channel->eventfds.released = channel_eventfd_released;
	INIT_WORK(&channel->close, channel_close_work);
	insula_eventfds_init(&channel->eventfds);
	mutex_init(&channel->lock);
	init_waitqueue_head(&channel->waitqueue);
}

static struct insula_area *channel_area_new(const struct insula_area_place *place, bool base)
{
	struct insula_area *area;
	u32 i;

	area = kvzalloc(struct_size(area, channels, place->count), GFP_KERNEL);
	if (!area)
		return ERR_PTR(-ENOMEM);
	kref_init(&area->refs);
	init_rwsem(&area->mapping);
	area->place = *place;
	area->base = base;
	for (i = 0; i < place->count; i++)
		channel_set_up(&area->channels[i], area, i);
	if (place->object)
		get_file(place->object);
	return area;
}

struct insula_area *insula_area_create(const struct insula_area_place *place,
				       struct insula_ringable *ringable)
{
	struct insula_area *area = channel_area_new(place, true);
	u32 i;

	if (IS_ERR(area))
		return area;
	RCU_INIT_POINTER(area->ringable, ringable);
	*(struct insula_area_header *)place->memory = (struct insula_area_header) {
		.magic = INSULA_CHANNEL_MAGIC,
		.revision = INSULA_CHANNEL_REVISION,
		.count = place->count,
		.slots = place->slots,
	};
	for (i = 0; i < place->count; i++) {
		memset(area->channels[i].own, 0, sizeof(struct insula_endpoint));
		memset(area->channels[i].peer, 0, sizeof(struct insula_endpoint));
	}
	return area;
}

void insula_area_set_ringable(struct insula_area *area, struct insula_ringable *ringable)
{
	ringable = rcu_replace_pointer(area->ringable, ringable, true);
	kfree_rcu(ringable, rcu);
}

struct insula_area *insula_area_join(const struct insula_area_place *place)
{
	return channel_area_new(place, false);
}

static void channel_area_free(struct kref *refs)
{
	struct insula_area *area = container_of(refs, struct insula_area, refs);
	u32 i;

	for (i = 0; i < area->place.count; i++)
		if (area->channels[i].has_doorbell)
			insula_doorbell_destroy(&area->channels[i].doorbell);
	if (area->place.object)
		fput(area->place.object);
	kfree(rcu_dereference_protected(area->ringable, true));
	if (area->scratch)
		__free_page(area->scratch); /* a mapping would hold a descriptor */
	kvfree(area);
}

void insula_area_get(struct insula_area *area)
{
	kref_get(&area->refs);
}

u32 insula_area_cores(const struct insula_area *area, u32 *apic_ids, u32 capacity)
{
	const struct insula_ringable *ringable;
	u32 count = 0;

	rcu_read_lock();
	ringable = rcu_dereference(area->ringable);
	if (ringable) {
		count = min(ringable->count, capacity);
		memcpy(apic_ids, ringable->apic_ids, count * sizeof(*apic_ids));
	}
	rcu_read_unlock();
	return count;
}

const u32 *insula_area_node_flags(const struct insula_area *area)
{
	const struct insula_area_header *header;

	if (!area)
		return NULL;
	header = area->place.memory;
	return &header->node;
}

void insula_area_set_node_flags(struct insula_area *area, u32 flags)
{
	struct insula_area_header *header = area->place.memory;

	WRITE_ONCE(header->node, flags);
}

void insula_area_put(struct insula_area *area)
{
	if (area)
		kref_put(&area->refs, channel_area_free);
}

void insula_area_disconnect(struct insula_area *area)
{
	u32 i;

	if (!area)
		return;
	WRITE_ONCE(area->disconnected, true);
	for (i = 0; i < area->place.count; i++) {
		struct insula_channel *channel = &area->channels[i];

		/* Writers to the memory have finished, or see `disconnected`. */
		mutex_lock(&channel->lock);
		if (channel->has_doorbell)
			insula_doorbell_publish(&channel->doorbell, NULL);
		if (channel->user)
			channel->user->rung(channel->user, 0);
		mutex_unlock(&channel->lock);
		wake_up_interruptible_poll(&channel->waitqueue, EPOLLHUP);
	}
}

static void channel_area_unmap_rings(struct insula_area *area)
{
	u32 i;

	lockdep_assert_held_write(&area->mapping);
	for (i = 0; i < area->place.count; i++)
		if (area->channels[i].mapping)
			unmap_mapping_range(area->channels[i].mapping, 0, 0, 1);
}

int insula_area_unmap(struct insula_area *area)
{
	struct page *scratch;

	if (!area || area->scratch)
		return 0;
	scratch = alloc_page(GFP_KERNEL | __GFP_ZERO);
	if (!scratch)
		return -ENOMEM;
	down_write(&area->mapping);
	area->scratch = scratch;
	channel_area_unmap_rings(area);
	up_write(&area->mapping);
	return 0;
}

/* Wait for a session, with the endpoint claimed by the caller and no lock held. */
static int channel_join_session(struct insula_channel *channel)
{
	int err;

	insula_doorbell_publish(&channel->doorbell, &channel->own->doorbell);
	smp_mb(); /* either the base sees our doorbell, or we see its session */
	err = wait_event_interruptible(channel->waitqueue, insula_session_try_to_join(channel));
	if (!err) {
		insula_session_ring(channel);
		return 0;
	}
	mutex_lock(&channel->lock);
	insula_doorbell_publish(&channel->doorbell, NULL);
	channel->open = false;
	mutex_unlock(&channel->lock);
	return err;
}

/* Claim an endpoint exclusively. */
static int channel_claim(struct insula_channel *channel)
{
	int err;

	lockdep_assert_held(&channel->lock);
	if (READ_ONCE(channel->area->disconnected))
		return -EPIPE;
	if (channel->open)
		return -EBUSY;
	if (!channel->has_doorbell) {
		err = insula_doorbell_create(&channel->doorbell);
		if (err)
			return err;
		channel->has_doorbell = true;
	}
	atomic64_set(&channel->rings_count, 0);
	channel->open = true;
	return 0;
}

static int channel_open(struct insula_channel *channel)
{
	int err;

	if (mutex_lock_interruptible(&channel->lock))
		return -EINTR;
	err = channel_claim(channel);
	if (!err && channel->area->base) {
		err = insula_session_begin(channel);
		channel->open = !err;
	}
	mutex_unlock(&channel->lock);
	return err || channel->area->base ? err : channel_join_session(channel);
}

static void channel_close(struct insula_channel *channel)
{
	mutex_lock(&channel->lock);
	channel->open = false;
	insula_session_leave(channel);
	insula_doorbell_publish(&channel->doorbell, NULL);
	mutex_unlock(&channel->lock);
}

/* Set where mappings of its rings are found, or NULL. */
static void channel_set_mapping(struct insula_channel *channel, struct address_space *mapping)
{
	down_write(&channel->area->mapping);
	channel->mapping = mapping;
	up_write(&channel->area->mapping);
}

/* Install a descriptor of an open endpoint; closing it closes the endpoint. */
static int channel_install(struct insula_channel *channel)
{
	struct file *file = insula_file_create("[insula-channel]", &channel_fops, channel);

	if (IS_ERR(file)) {
		channel_close(channel);
		return PTR_ERR(file);
	}
	insula_area_get(channel->area); /* the descriptor's */
	channel_set_mapping(channel, file->f_mapping);
	return insula_file_install(file);
}

int insula_channel_open(struct insula_area *area, void __user *argument)
{
	struct insula_channel_open request;
	struct insula_channel *channel;
	int err;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (request.index >= area->place.count)
		return -ENOENT;
	channel = &area->channels[request.index];
	request.slots = area->place.slots;
	if (copy_to_user(argument, &request, sizeof(request)))
		return -EFAULT;
	err = channel_open(channel);
	return err ? err : channel_install(channel);
}

static ssize_t channel_read(struct file *file, char __user *to, size_t size, loff_t *position)
{
	struct insula_channel *channel = file->private_data;
	u64 count;
	int err;

	if (size < sizeof(count))
		return -EINVAL;
	while (!(count = atomic64_xchg(&channel->rings_count, 0))) {
		if (insula_session_disconnected(channel))
			return 0;
		if (file->f_flags & O_NONBLOCK)
			return -EAGAIN;
		err = wait_event_interruptible(channel->waitqueue,
					       atomic64_read(&channel->rings_count) ||
					       insula_session_disconnected(channel));
		if (err)
			return err;
	}
	return copy_to_user(to, &count, sizeof(count)) ? -EFAULT : sizeof(count);
}

static __poll_t channel_poll(struct file *file, struct poll_table_struct *table)
{
	struct insula_channel *channel = file->private_data;
	__poll_t events = 0;

	poll_wait(file, &channel->waitqueue, table);
	if (atomic64_read(&channel->rings_count))
		events |= EPOLLIN | EPOLLRDNORM;
	if (insula_session_disconnected(channel))
		events |= EPOLLHUP | EPOLLIN;
	return events;
}

/* Map a page of the rings or, once the area is unmapped, the scratch page. */
static vm_fault_t channel_fault(struct vm_fault *vmf)
{
	struct insula_channel *channel = vmf->vma->vm_file->private_data;
	struct insula_area *area = channel->area;
	vm_fault_t answer;
	unsigned long pfn;

	down_read(&area->mapping);
	pfn = area->scratch ? page_to_pfn(area->scratch) :
			      PHYS_PFN(channel->rings_start) + vmf->pgoff;
	answer = vmf_insert_pfn(vmf->vma, vmf->address & PAGE_MASK, pfn);
	up_read(&area->mapping);
	return answer;
}

static const struct vm_operations_struct channel_vm_ops = {
	.fault = channel_fault,
};

static int channel_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct insula_channel *channel = file->private_data;
	u64 size = INSULA_RINGS_SIZE(channel->area->place.slots);
	u64 offset = (u64)vma->vm_pgoff << PAGE_SHIFT;
	u64 length = vma->vm_end - vma->vm_start;

	if (!(vma->vm_flags & VM_SHARED) || offset > size || length > size - offset)
		return -EINVAL;
	insula_vm_flags_set(vma, VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP);
	vma->vm_ops = &channel_vm_ops;
	return 0;
}

static int channel_ioctl_eventfd(struct insula_channel *channel, void __user *argument)
{
	struct insula_channel_eventfd request;
	int err;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (mutex_lock_interruptible(&channel->lock))
		return -EINTR;
	err = insula_eventfds_bind(&channel->eventfds, &request);
	mutex_unlock(&channel->lock);
	return err;
}

static int channel_ioctl_ring(struct insula_channel *channel)
{
	if (insula_session_disconnected(channel))
		return -EPIPE;
	insula_session_ring(channel);
	return 0;
}

static long channel_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct insula_channel *channel = file->private_data;

	switch (command) {
	case INSULA_CHANNEL_RING:
		return channel_ioctl_ring(channel);
	case INSULA_CHANNEL_EVENTFD:
		return channel_ioctl_eventfd(channel, (void __user *)argument);
	default:
		return -ENOTTY;
	}
}

/* Finish closing, if no ioeventfd of the endpoint is in use any more. */
static void channel_close_if_released(struct insula_channel *channel)
{
	bool now;

	mutex_lock(&channel->lock);
	now = channel->closing && !insula_eventfds_in_use(&channel->eventfds);
	if (now)
		channel->closing = false;
	mutex_unlock(&channel->lock);
	if (!now)
		return;
	insula_eventfds_clear(&channel->eventfds);
	channel_close(channel);
	insula_area_put(channel->area);
	module_put(THIS_MODULE);
}

static void channel_close_work(struct work_struct *work)
{
	struct insula_channel *channel = container_of(work, struct insula_channel, close);

	channel_close_if_released(channel);
	insula_area_put(channel->area); /* channel_eventfd_released()'s */
}

/*
 * A back end that outlives the holder of the descriptor, as when that was killed, may still
 * access the peer's memory: the session is left only after it has finished.
 */
static int channel_release(struct inode *inode, struct file *file)
{
	struct insula_channel *channel = file->private_data;

	__module_get(THIS_MODULE); /* the file's reference is about to go */
	channel_set_mapping(channel, NULL);
	insula_eventfds_disable_irqfds(&channel->eventfds);
	mutex_lock(&channel->lock);
	channel->closing = true;
	mutex_unlock(&channel->lock);
	channel_close_if_released(channel);
	return 0;
}

static const struct file_operations channel_fops = {
	.owner = THIS_MODULE,
	.read = channel_read,
	.poll = channel_poll,
	.mmap = channel_mmap,
	.unlocked_ioctl = channel_ioctl,
	.release = channel_release,
	.llseek = noop_llseek,
};

int insula_channels_init(void)
{
	closing_queue = alloc_workqueue("insula_channel", 0, 0);
	return closing_queue ? 0 : -ENOMEM;
}

void insula_channels_exit(void)
{
	destroy_workqueue(closing_queue);
}
