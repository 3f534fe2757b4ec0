// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ends of channels, as descriptors: mapped rings, a doorbell each way, sessions.
 *
 * Rings are read and written by whoever has the descriptor; here only the words of the
 * two ends are (session.c).
 */
#include "channel.h"

#include <linux/err.h>
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

#include "compat/compat.h"
#include "file.h"
#include "memory.h"
#include "own_end.h"
#include "session.h"

static const struct file_operations channel_fops;
/* Where ends are closed that could not be at once. */
static struct workqueue_struct *closing_queue;

int insula_area_check(u32 count, u32 slots)
{
	if (!count || count > INSULA_CHANNELS_MAX || slots < INSULA_SLOTS_MIN ||
	    slots > INSULA_SLOTS_MAX || !is_power_of_2(slots))
		return -EINVAL;
	return 0;
}

static void rung(struct insula_doorbell *doorbell)
{
	struct insula_channel *channel = container_of(doorbell, struct insula_channel, doorbell);
	u64 events = READ_ONCE(*channel->signalled) ? xchg(channel->signalled, 0) : 0;

	if (channel->user) {
		channel->user->rung(channel->user, events);
		return;
	}
	insula_bindings_signalled(&channel->bindings, events);
	atomic64_inc(&channel->rung);
	wake_up_interruptible_poll(&channel->waiting, EPOLLIN);
}

static void signal_bound(struct insula_bindings *bindings, u32 event)
{
	insula_session_signal(container_of(bindings, struct insula_channel, bindings), event);
}

static void let_go(struct insula_bindings *bindings)
{
	struct insula_channel *channel = container_of(bindings, struct insula_channel, bindings);

	/* The end may be closed, and the area be let go of, before the work is done. */
	insula_area_get(channel->area);
	if (!queue_work(closing_queue, &channel->close))
		insula_area_put(channel->area); /* never the last: whoever is bound has one */
}

static void close_work(struct work_struct *work);

static void set_up(struct insula_channel *channel, struct insula_area *area, u32 index)
{
	u64 offset = INSULA_AREA_SIZE(index, area->place.slots);
	struct insula_ends *ends = area->place.memory + offset;

	channel->area = area;
	channel->own = area->base ? &ends->base : &ends->node;
	channel->peer = area->base ? &ends->node : &ends->base;
	channel->signalled = area->base ? &ends->to_base.pending : &ends->to_node.pending;
	channel->signals = area->base ? &ends->to_node.pending : &ends->to_base.pending;
	channel->rings = (void *)ends + INSULA_CHANNEL_RINGS;
	channel->rings_start = area->place.start + offset + INSULA_CHANNEL_RINGS;
	channel->doorbell.rung = rung;
	channel->bindings.signal = signal_bound;
	channel->bindings.let_go = let_go;
	INIT_WORK(&channel->close, close_work);
	insula_bindings_init(&channel->bindings);
	mutex_init(&channel->lock);
	init_waitqueue_head(&channel->waiting);
}

static struct insula_area *new_area(const struct insula_area_place *place, bool base)
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
		set_up(&area->channels[i], area, i);
	if (place->keeper)
		insula_memory_hold(place->keeper);
	return area;
}

struct insula_area *insula_area_create(const struct insula_area_place *place,
				       struct insula_ringable *ringable)
{
	struct insula_area *area = new_area(place, true);
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
		memset(area->channels[i].own, 0, sizeof(struct insula_end));
		memset(area->channels[i].peer, 0, sizeof(struct insula_end));
	}
	return area;
}

void insula_area_change(struct insula_area *area, struct insula_ringable *ringable)
{
	ringable = rcu_replace_pointer(area->ringable, ringable, true);
	kfree_rcu(ringable, rcu);
}

struct insula_area *insula_area_join(const struct insula_area_place *place)
{
	return new_area(place, false);
}

static void free_area(struct kref *refs)
{
	struct insula_area *area = container_of(refs, struct insula_area, refs);
	u32 i;

	for (i = 0; i < area->place.count; i++)
		if (area->channels[i].audible)
			insula_doorbell_destroy(&area->channels[i].doorbell);
	if (area->place.keeper)
		insula_memory_put(area->place.keeper);
	kfree(rcu_dereference_protected(area->ringable, true));
	if (area->scratch)
		__free_page(area->scratch); /* who maps it has a descriptor */
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

const u32 *insula_area_told(const struct insula_area *area)
{
	const struct insula_area_header *header;

	if (!area)
		return NULL;
	header = area->place.memory;
	return &header->node;
}

void insula_area_tell(struct insula_area *area, u32 flags)
{
	struct insula_area_header *header = area->place.memory;

	WRITE_ONCE(header->node, flags);
}

void insula_area_put(struct insula_area *area)
{
	if (area)
		kref_put(&area->refs, free_area);
}

void insula_area_hang_up(struct insula_area *area)
{
	u32 i;

	if (!area)
		return;
	WRITE_ONCE(area->gone, true);
	for (i = 0; i < area->place.count; i++) {
		struct insula_channel *channel = &area->channels[i];

		/* Whoever writes to the memory has finished, or sees that it must not. */
		mutex_lock(&channel->lock);
		if (channel->audible)
			insula_doorbell_publish(&channel->doorbell, NULL);
		if (channel->user)
			channel->user->rung(channel->user, 0);
		mutex_unlock(&channel->lock);
		wake_up_interruptible_poll(&channel->waiting, EPOLLHUP);
	}
}

static void unmap_rings(struct insula_area *area)
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
	unmap_rings(area);
	up_write(&area->mapping);
	return 0;
}

/* The end is the caller's, who has it until there is a session: no lock is held meanwhile. */
static int join_session(struct insula_channel *channel)
{
	int err;

	insula_doorbell_publish(&channel->doorbell, &channel->own->doorbell);
	smp_mb(); /* the base rings by it, or we see its session */
	err = wait_event_interruptible(channel->waiting, insula_session_try_to_join(channel));
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

/* Nobody else opens it from here on. */
static int claim_end(struct insula_channel *channel)
{
	int err;

	lockdep_assert_held(&channel->lock);
	if (READ_ONCE(channel->area->gone))
		return -EPIPE;
	if (channel->open)
		return -EBUSY;
	if (!channel->audible) {
		err = insula_doorbell_create(&channel->doorbell);
		if (err)
			return err;
		channel->audible = true;
	}
	atomic64_set(&channel->rung, 0);
	channel->open = true;
	return 0;
}

static int open_end(struct insula_channel *channel)
{
	int err;

	if (mutex_lock_interruptible(&channel->lock))
		return -EINTR;
	err = claim_end(channel);
	if (!err && channel->area->base) {
		err = insula_session_begin(channel);
		channel->open = !err;
	}
	mutex_unlock(&channel->lock);
	return err || channel->area->base ? err : join_session(channel);
}

static void close_end(struct insula_channel *channel)
{
	mutex_lock(&channel->lock);
	channel->open = false;
	insula_session_leave(channel);
	insula_doorbell_publish(&channel->doorbell, NULL);
	mutex_unlock(&channel->lock);
}

/* Which mappings are to be found later, if any. */
static void set_mapping(struct insula_channel *channel, struct address_space *mapping)
{
	down_write(&channel->area->mapping);
	channel->mapping = mapping;
	up_write(&channel->area->mapping);
}

/* A descriptor of an end that has been opened, which goes with it. */
static int install(struct insula_channel *channel)
{
	struct file *file = insula_file_create("[insula-channel]", &channel_fops, channel);

	if (IS_ERR(file)) {
		close_end(channel);
		return PTR_ERR(file);
	}
	insula_area_get(channel->area); /* the descriptor's */
	set_mapping(channel, file->f_mapping);
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
	err = open_end(channel);
	return err ? err : install(channel);
}

static ssize_t channel_read(struct file *file, char __user *to, size_t size, loff_t *position)
{
	struct insula_channel *channel = file->private_data;
	u64 count;
	int err;

	if (size < sizeof(count))
		return -EINVAL;
	while (!(count = atomic64_xchg(&channel->rung, 0))) {
		if (insula_session_hung_up(channel))
			return 0;
		if (file->f_flags & O_NONBLOCK)
			return -EAGAIN;
		err = wait_event_interruptible(channel->waiting,
					       atomic64_read(&channel->rung) ||
					       insula_session_hung_up(channel));
		if (err)
			return err;
	}
	return copy_to_user(to, &count, sizeof(count)) ? -EFAULT : sizeof(count);
}

static __poll_t channel_poll(struct file *file, struct poll_table_struct *table)
{
	struct insula_channel *channel = file->private_data;
	__poll_t events = 0;

	poll_wait(file, &channel->waiting, table);
	if (atomic64_read(&channel->rung))
		events |= EPOLLIN | EPOLLRDNORM;
	if (insula_session_hung_up(channel))
		events |= EPOLLHUP | EPOLLIN;
	return events;
}

/* A page of the rings or, once these are no more this area's, one that nobody looks at. */
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

static int bind(struct insula_channel *channel, void __user *argument)
{
	struct insula_channel_event request;
	int err;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (mutex_lock_interruptible(&channel->lock))
		return -EINTR;
	err = insula_bindings_bind(&channel->bindings, &request);
	mutex_unlock(&channel->lock);
	return err;
}

static int ioctl_ring(struct insula_channel *channel)
{
	if (insula_session_hung_up(channel))
		return -EPIPE;
	insula_session_ring(channel);
	return 0;
}

static long channel_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct insula_channel *channel = file->private_data;

	switch (command) {
	case INSULA_CHANNEL_RING:
		return ioctl_ring(channel);
	case INSULA_CHANNEL_EVENT:
		return bind(channel, (void __user *)argument);
	default:
		return -ENOTTY;
	}
}

/* Close what is to be closed, if nobody has an eventfd of its any more. */
static void close_if_let_go(struct insula_channel *channel)
{
	bool now;

	mutex_lock(&channel->lock);
	now = channel->closing && !insula_bindings_held(&channel->bindings);
	if (now)
		channel->closing = false;
	mutex_unlock(&channel->lock);
	if (!now)
		return;
	insula_bindings_clear(&channel->bindings);
	close_end(channel);
	insula_area_put(channel->area);
	module_put(THIS_MODULE);
}

static void close_work(struct work_struct *work)
{
	struct insula_channel *channel = container_of(work, struct insula_channel, close);

	close_if_let_go(channel);
	insula_area_put(channel->area); /* of let_go() */
}

/*
 * A back end that the holder has left behind, as when it was killed, may still be at work
 * in the peer's memory: the peer is told of the end only afterwards.
 */
static int channel_release(struct inode *inode, struct file *file)
{
	struct insula_channel *channel = file->private_data;

	__module_get(THIS_MODULE); /* the file's is about to go */
	set_mapping(channel, NULL);
	insula_bindings_silence(&channel->bindings);
	mutex_lock(&channel->lock);
	channel->closing = true;
	mutex_unlock(&channel->lock);
	close_if_let_go(channel);
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
