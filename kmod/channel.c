// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ends of channels, as descriptors: mapped rings, a doorbell each way, sessions. The
 * protocol is told in docs/src/channels.md, the layout in insula_channel.h.
 *
 * Rings are read and written by whoever has the descriptor; here only the words of
 * the two ends are. Of these each side writes its own, and believes nothing of the
 * other's.
 */
#include "channel.h"

#include <linux/anon_inodes.h>
#include <linux/err.h>
#include <linux/file.h>
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

#include "arch/x86/doorbell.h"
#include "arch/x86/start.h"
#include "event.h"
#include "memory.h"

struct insula_channel {
	struct insula_area *area;
	struct insula_end *own, *peer;	/* in shared memory */
	u64 *signalled, *signals;	/* the same: events to us, and to the peer */
	struct insula_bindings bindings;	/* of events */
	void *rings;			/* the same */
	phys_addr_t rings_start;
	struct mutex lock;		/* opening and closing */
	bool open;
	bool closing;			/* as soon as no back end works on its events */
	struct work_struct close;
	bool audible;			/* it has its doorbell */
	u64 session;			/* the last one that it was in */
	struct insula_doorbell doorbell;
	struct insula_own_end *user;	/* who is rung instead of a descriptor's holder */
	atomic64_t rung;		/* times, since last read */
	wait_queue_head_t waiting;
};

struct insula_area {
	struct kref refs;		/* who made it, and open ends */
	struct insula_area_place place;
	bool base;			/* which side we are */
	bool gone;			/* the other is no more */
	struct insula_ringable __rcu *ringable;	/* NULL: any */
	struct insula_channel channels[];
};

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

static bool may_ring(const struct insula_area *area, u32 apic_id)
{
	const struct insula_ringable *ringable;
	bool may;
	u32 i;

	rcu_read_lock();
	ringable = rcu_dereference(area->ringable);
	may = !ringable;
	for (i = 0; !may && i < ringable->count; i++)
		may = ringable->apic_ids[i] == apic_id;
	rcu_read_unlock();
	return may;
}

/* Ring the peer, if it can be rung. */
static void ring(const struct insula_channel *channel)
{
	u32 apic_id;
	u8 vector;

	smp_mb(); /* what it is rung for, before a look at its doorbell */
	if (insula_doorbell_read(READ_ONCE(channel->peer->doorbell), &apic_id, &vector) &&
	    may_ring(channel->area, apic_id) && !READ_ONCE(channel->area->gone))
		insula_start_interrupt(apic_id, vector);
}

static void signal_peer(struct insula_channel *channel, u32 event)
{
	/* Its memory may be in use for something else. */
	if (READ_ONCE(channel->area->gone))
		return;
	/* If one was pending, who signalled that has rung, and has not been heard yet. */
	if (!atomic64_fetch_or(BIT_ULL(event), (atomic64_t *)channel->signals))
		ring(channel);
}

static void signal_bound(struct insula_bindings *bindings, u32 event)
{
	signal_peer(container_of(bindings, struct insula_channel, bindings), event);
}

static void let_go(struct insula_bindings *bindings)
{
	struct insula_channel *channel = container_of(bindings, struct insula_channel, bindings);

	queue_work(closing_queue, &channel->close);
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

/* Whether the other side has left the session, or lives no more. */
static bool hung_up(const struct insula_channel *channel)
{
	u64 session = smp_load_acquire(&channel->peer->session); /* it opened before */
	bool open = READ_ONCE(channel->peer->open);

	if (READ_ONCE(channel->area->gone))
		return true;
	/* A node that has not joined the base's session yet has not left it either. */
	if (channel->area->base)
		return session == channel->session && !open;
	return session != channel->session || !open;
}

/* A new session, on the base; -EBUSY while the node is in an old one. */
static int begin_session(struct insula_channel *channel)
{
	channel->session++;
	WRITE_ONCE(channel->own->session, channel->session);
	smp_mb(); /* a node that opens meanwhile sees this, or we see it */
	if (READ_ONCE(channel->peer->open))
		return -EBUSY;
	memset(channel->rings, 0, INSULA_RINGS_SIZE(channel->area->place.slots));
	WRITE_ONCE(*channel->signalled, 0);
	WRITE_ONCE(*channel->signals, 0);
	insula_doorbell_publish(&channel->doorbell, &channel->own->doorbell);
	smp_store_release(&channel->own->open, 1); /* the clear rings */
	ring(channel);
	return 0;
}

/* Join the base's session, on a node, if there is one that was not joined before. */
static bool try_to_join(struct insula_channel *channel)
{
	u64 session;

	if (!smp_load_acquire(&channel->peer->open)) /* its rings are clear */
		return false;
	session = READ_ONCE(channel->peer->session);
	if (session == READ_ONCE(channel->own->session))
		return false;
	WRITE_ONCE(channel->own->open, 1);
	smp_store_release(&channel->own->session, session); /* that it is open */
	smp_mb(); /* a base that makes another session meanwhile sees this, or we see it */
	if (READ_ONCE(channel->peer->session) == session && READ_ONCE(channel->peer->open)) {
		channel->session = session;
		return true;
	}
	WRITE_ONCE(channel->own->open, 0);
	return false;
}

static int join_session(struct insula_channel *channel)
{
	int err;

	insula_doorbell_publish(&channel->doorbell, &channel->own->doorbell);
	smp_mb(); /* the base rings by it, or we see its session */
	err = wait_event_interruptible(channel->waiting, try_to_join(channel));
	if (err)
		insula_doorbell_publish(&channel->doorbell, NULL);
	else
		ring(channel);
	return err;
}

static int open_end(struct insula_channel *channel)
{
	int err;

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
	err = channel->area->base ? begin_session(channel) : join_session(channel);
	channel->open = !err;
	return err;
}

static void close_end(struct insula_channel *channel)
{
	mutex_lock(&channel->lock);
	channel->open = false;
	/* Without the other side, the memory may be in use for something else. */
	if (!READ_ONCE(channel->area->gone)) {
		WRITE_ONCE(channel->own->open, 0);
		ring(channel);
		insula_doorbell_publish(&channel->doorbell, NULL);
	}
	mutex_unlock(&channel->lock);
}

/* A descriptor of an end that has been opened, which goes with it. */
static int install(struct insula_channel *channel)
{
	int fd;

	kref_get(&channel->area->refs); /* the descriptor's */
	fd = anon_inode_getfd("[insula-channel]", &channel_fops, channel, O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		close_end(channel);
		insula_area_put(channel->area);
	}
	return fd;
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
	if (mutex_lock_interruptible(&channel->lock))
		return -EINTR;
	err = open_end(channel);
	mutex_unlock(&channel->lock);
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
		if (hung_up(channel))
			return 0;
		if (file->f_flags & O_NONBLOCK)
			return -EAGAIN;
		err = wait_event_interruptible(channel->waiting,
					       atomic64_read(&channel->rung) || hung_up(channel));
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
	if (hung_up(channel))
		events |= EPOLLHUP | EPOLLIN;
	return events;
}

static int channel_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct insula_channel *channel = file->private_data;
	u64 size = INSULA_RINGS_SIZE(channel->area->place.slots);
	u64 offset = (u64)vma->vm_pgoff << PAGE_SHIFT;
	u64 length = vma->vm_end - vma->vm_start;

	if (!(vma->vm_flags & VM_SHARED) || offset > size || length > size - offset)
		return -EINVAL;
	return remap_pfn_range(vma, vma->vm_start, PHYS_PFN(channel->rings_start) + vma->vm_pgoff,
			       length, vma->vm_page_prot);
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
	if (hung_up(channel))
		return -EPIPE;
	ring(channel);
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
	close_if_let_go(container_of(work, struct insula_channel, close));
}

/*
 * A back end that the holder has left behind, as when it was killed, may still be at work
 * in the peer's memory: the peer is told of the end only afterwards.
 */
static int channel_release(struct inode *inode, struct file *file)
{
	struct insula_channel *channel = file->private_data;

	__module_get(THIS_MODULE); /* the file's is about to go */
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

/* As two programs would exclude each other: a claimed end counts as open. */
static int claim(struct insula_channel *channel, struct insula_own_end *end)
{
	int err;

	if (channel->open)
		return -EBUSY;
	if (channel->audible)
		insula_doorbell_destroy(&channel->doorbell);
	channel->user = end;
	err = insula_doorbell_create(&channel->doorbell);
	channel->audible = !err;
	channel->open = !err;
	if (err)
		channel->user = NULL;
	else
		insula_doorbell_publish(&channel->doorbell, &channel->own->doorbell);
	return err;
}

int insula_own_end_claim(struct insula_own_end *end, struct insula_area *area, u32 index)
{
	int err;

	if (index >= area->place.count)
		return -ENOENT;
	end->channel = &area->channels[index];
	end->joined = false;
	mutex_lock(&end->channel->lock);
	err = claim(end->channel, end);
	mutex_unlock(&end->channel->lock);
	return err;
}

void insula_own_end_silence(struct insula_own_end *end)
{
	struct insula_channel *channel = end->channel;

	mutex_lock(&channel->lock);
	insula_doorbell_destroy(&channel->doorbell);
	channel->audible = false;
	channel->user = NULL;
	mutex_unlock(&channel->lock);
}
EXPORT_SYMBOL_GPL(insula_own_end_silence);

void insula_own_end_release(struct insula_own_end *end)
{
	if (end->joined)
		insula_own_end_leave(end);
	mutex_lock(&end->channel->lock);
	end->channel->open = false;
	mutex_unlock(&end->channel->lock);
}
EXPORT_SYMBOL_GPL(insula_own_end_release);

void insula_own_end_use(struct insula_own_end *end)
{
	const struct insula_channel *channel = end->channel;
	struct insula_rings *rings = channel->rings;
	u32 count = channel->area->place.slots;
	struct insula_ring_place to_node = {
		.control = &rings->to_node,
		.slots = channel->rings + INSULA_RINGS_SLOTS,
		.count = count,
	};
	struct insula_ring_place to_base = {
		.control = &rings->to_base,
		.slots = to_node.slots + count,
		.count = count,
	};

	insula_consumer_init(&end->consumer, channel->area->base ? &to_base : &to_node);
	insula_producer_init(&end->producer, channel->area->base ? &to_node : &to_base);
	end->joined = true;
}

int insula_own_end_begin(struct insula_own_end *end)
{
	struct insula_channel *channel = end->channel;
	int err = -EPIPE;

	mutex_lock(&channel->lock);
	if (!READ_ONCE(channel->area->gone))
		err = begin_session(channel);
	mutex_unlock(&channel->lock);
	return err;
}

bool insula_own_end_answered(const struct insula_own_end *end)
{
	const struct insula_channel *channel = end->channel;

	u64 session = smp_load_acquire(&channel->peer->session); /* it opened before */

	return session == channel->session && READ_ONCE(channel->peer->open) &&
	       !READ_ONCE(channel->area->gone);
}

bool insula_own_end_left(const struct insula_own_end *end)
{
	return !READ_ONCE(end->channel->area->gone) && hung_up(end->channel);
}

bool insula_own_end_join(struct insula_own_end *end)
{
	smp_mb(); /* our doorbell is there, or we see the base's session */
	if (!try_to_join(end->channel))
		return false;
	insula_own_end_use(end);
	ring(end->channel);
	return true;
}
EXPORT_SYMBOL_GPL(insula_own_end_join);

void insula_own_end_leave(struct insula_own_end *end)
{
	struct insula_channel *channel = end->channel;

	end->joined = false;
	mutex_lock(&channel->lock);
	/* Without the other side, the memory may be in use for something else. */
	if (!READ_ONCE(channel->area->gone)) {
		WRITE_ONCE(channel->own->open, 0);
		ring(channel);
	}
	mutex_unlock(&channel->lock);
}
EXPORT_SYMBOL_GPL(insula_own_end_leave);

bool insula_own_end_hung_up(const struct insula_own_end *end)
{
	return hung_up(end->channel);
}
EXPORT_SYMBOL_GPL(insula_own_end_hung_up);

void insula_own_end_signal(const struct insula_own_end *end, u32 event)
{
	signal_peer(end->channel, event);
}
EXPORT_SYMBOL_GPL(insula_own_end_signal);

void insula_own_end_ring(const struct insula_own_end *end)
{
	ring(end->channel);
}
EXPORT_SYMBOL_GPL(insula_own_end_ring);

int insula_channels_init(void)
{
	closing_queue = alloc_workqueue("insula_channel", 0, 0);
	return closing_queue ? 0 : -ENOMEM;
}

void insula_channels_exit(void)
{
	destroy_workqueue(closing_queue);
}
