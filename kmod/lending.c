// SPDX-License-Identifier: GPL-2.0-only
/*
 * The base's side of the messages about lent memory (insula_frames.h).
 *
 * Taking back is done on behalf of the base's memory management, which waits with locks
 * of its own held. So nothing here waits for somebody who may wait for memory, and a node
 * that does not answer is stopped here and now: its cores are the node's as long as
 * insula_lending_end() has not been called, which needs the lock.
 */
#include "lending.h"

#include <linux/delay.h>
#include <linux/err.h>
#include <linux/jiffies.h>
#include <linux/kref.h>
#include <linux/mutex.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/wait.h>

#include "arch/x86/start.h"
#include "channel.h"
#include "own_end.h"

/*
 * A node's module that is there answers a new session as soon as its core comes to it:
 * on an emulated machine whose host is busy, or after a stop of the whole machine, in
 * seconds.
 */
#define LISTEN		msecs_to_jiffies(INSULA_LEND_PATIENCE_MAX_MS)
/* Between looks whether a full ring has room. */
#define ROOM_POLL_US	50

struct insula_lending {
	struct kref refs;
	struct insula_area *area;
	struct insula_own_end end;
	struct mutex lock;	/* from here to lost, and the end's producer */
	u32 lenders;		/* numbers that have been given */
	u32 taken;		/* number of the last TAKEN */
	bool ended;		/* it uses nothing any more */
	bool lost;		/* it may, for ever */
	u32 apic_ids[INSULA_NODE_CPUS_MAX];
	spinlock_t receiving;	/* returned, and the end's consumer */
	u32 returned;		/* the last TAKEN that it has obeyed */
	wait_queue_head_t changes;
};

static void rung(struct insula_own_end *end, u64 events)
{
	struct insula_lending *lending = container_of(end, struct insula_lending, end);

	wake_up_all(&lending->changes);
}

/* Who reclaims memory may come to take the lock: have lockdep know before one does. */
static void tell_lockdep(struct insula_lending *lending)
{
	fs_reclaim_acquire(GFP_KERNEL);
	might_lock(&lending->lock);
	fs_reclaim_release(GFP_KERNEL);
}

struct insula_lending *insula_lending_create(struct insula_area *area)
{
	struct insula_lending *lending = kzalloc(sizeof(*lending), GFP_KERNEL);
	int err;

	if (!lending)
		return ERR_PTR(-ENOMEM);
	kref_init(&lending->refs);
	mutex_init(&lending->lock);
	tell_lockdep(lending);
	spin_lock_init(&lending->receiving);
	init_waitqueue_head(&lending->changes);
	lending->end.rung = rung;
	err = insula_own_end_claim(&lending->end, area, INSULA_CHANNEL_FRAMES);
	if (err) {
		kfree(lending);
		return ERR_PTR(err);
	}
	insula_area_get(area);
	lending->area = area;
	return lending;
}

static void free_lending(struct kref *refs)
{
	struct insula_lending *lending = container_of(refs, struct insula_lending, refs);

	insula_own_end_silence(&lending->end);
	insula_own_end_release(&lending->end);
	insula_area_put(lending->area);
	kfree(lending);
}

void insula_lending_get(struct insula_lending *lending)
{
	kref_get(&lending->refs);
}

void insula_lending_put(struct insula_lending *lending)
{
	if (lending)
		kref_put(&lending->refs, free_lending);
}

void insula_lending_lock(struct insula_lending *lending)
{
	mutex_lock(&lending->lock);
}

bool insula_lending_trylock(struct insula_lending *lending)
{
	return mutex_trylock(&lending->lock);
}

void insula_lending_unlock(struct insula_lending *lending)
{
	mutex_unlock(&lending->lock);
}

void insula_lending_assert_locked(const struct insula_lending *lending)
{
	lockdep_assert_held(&lending->lock);
}

u32 insula_lending_number(struct insula_lending *lending)
{
	u32 number;

	mutex_lock(&lending->lock);
	number = ++lending->lenders;
	mutex_unlock(&lending->lock);
	return number;
}

/* A session for the node to join, unless there is one. Lock held. */
static int begin(struct insula_lending *lending)
{
	int err;

	lockdep_assert_held(&lending->lock);
	if (lending->ended)
		return -EPIPE;
	if (lending->end.joined && !insula_own_end_hung_up(&lending->end))
		return 0;
	spin_lock(&lending->receiving);
	lending->end.joined = false;
	spin_unlock(&lending->receiving);
	err = insula_own_end_begin(&lending->end);
	if (err)
		return err;
	spin_lock(&lending->receiving);
	insula_own_end_use(&lending->end);
	/* Who left the last session uses nothing of what it was told there. */
	lending->returned = lending->taken;
	spin_unlock(&lending->receiving);
	return 0;
}

static bool is_over(const struct insula_lending *lending)
{
	return READ_ONCE(lending->ended) || insula_own_end_hung_up(&lending->end);
}

int insula_lending_connect(struct insula_lending *lending)
{
	long left;
	int err;

	insula_own_end_lock(&lending->end);
	mutex_lock(&lending->lock);
	err = begin(lending);
	mutex_unlock(&lending->lock);
	insula_own_end_unlock(&lending->end);
	if (err)
		return err == -EBUSY ? -ENOTCONN : err;
	left = wait_event_interruptible_timeout(lending->changes,
						insula_own_end_answered(&lending->end) ||
						is_over(lending), LISTEN);
	if (left < 0)
		return -EINTR;
	if (READ_ONCE(lending->ended))
		return -EPIPE;
	return insula_own_end_answered(&lending->end) ? 0 : -ENOTCONN;
}

static int send(struct insula_lending *lending, const struct insula_message *message)
{
	lockdep_assert_held(&lending->lock);
	if (lending->ended || !lending->end.joined)
		return -EPIPE;
	return insula_own_end_send(&lending->end, message);
}

int insula_lending_grant(struct insula_lending *lending, const struct insula_frames *frames,
			 const struct insula_pages *pages, u8 pages_count)
{
	struct insula_message message = {
		.pages = pages,
		.pages_count = pages_count,
		.bytes = frames,
		.bytes_size = sizeof(*frames),
		.kind = INSULA_FRAMES_GRANTED,
	};

	return send(lending, &message);
}

/* The next message of the node's counts if it can be true. Receiving. */
static int receive(struct insula_lending *lending)
{
	struct insula_received received;
	struct insula_frames frames;
	int err = insula_own_end_receive(&lending->end, &frames, sizeof(frames), &received);

	lockdep_assert_held(&lending->receiving);
	if (err)
		return err;
	if (received.kind == INSULA_FRAMES_RETURNED && received.size == sizeof(frames) &&
	    frames.number - lending->returned <= READ_ONCE(lending->taken) - lending->returned)
		lending->returned = frames.number;
	return 0;
}

/* Look at what the node has said; more than a ringful at once is nonsense. */
static bool has_returned(struct insula_lending *lending, u32 number)
{
	u32 left = INSULA_SLOTS_MAX;
	bool returned;
	int err = 0;

	spin_lock(&lending->receiving);
	while (lending->end.joined && left-- && err != -EPROTO && err != -EMSGSIZE) {
		err = receive(lending);
		if (err == -EAGAIN && insula_consumer_prepare_to_sleep(&lending->end.consumer))
			break;
	}
	returned = (s32)(lending->returned - number) >= 0;
	spin_unlock(&lending->receiving);
	return returned;
}

static bool is_settled(struct insula_lending *lending, u32 number)
{
	return has_returned(lending, number) || is_over(lending);
}

/* Tell the node of a taking, and number it. */
static int tell(struct insula_lending *lending, struct insula_frames *frames,
		unsigned long deadline)
{
	struct insula_message message = {
		.bytes = frames,
		.bytes_size = sizeof(*frames),
		.kind = INSULA_FRAMES_TAKEN,
	};
	int err;

	for (;;) {
		mutex_lock(&lending->lock);
		frames->number = lending->taken + 1;
		err = send(lending, &message);
		if (!err)
			WRITE_ONCE(lending->taken, frames->number);
		mutex_unlock(&lending->lock);
		if (err != -EAGAIN || is_over(lending))
			return err;
		if (time_after(jiffies, deadline))
			return -ETIMEDOUT;
		usleep_range(ROOM_POLL_US, 2 * ROOM_POLL_US);
	}
}

/* Its cores are reset, all at once, and then seen to obey. Lock held. */
static bool reset_cores(struct insula_lending *lending)
{
	u32 count = insula_area_cores(lending->area, lending->apic_ids,
				      ARRAY_SIZE(lending->apic_ids));
	bool obeyed = true;
	u32 i;

	lockdep_assert_held(&lending->lock);
	for (i = 0; i < count; i++)
		insula_start_reset(lending->apic_ids[i]);
	for (i = 0; i < count; i++)
		if (insula_start_settle(lending->apic_ids[i]))
			obeyed = false;
	return obeyed;
}

static int stop(struct insula_lending *lending)
{
	int err = 0;

	mutex_lock(&lending->lock);
	if (!lending->ended) {
		lending->lost = !reset_cores(lending);
		WRITE_ONCE(lending->ended, true);
		err = -ETIMEDOUT;
	}
	if (lending->lost)
		err = -EIO;
	mutex_unlock(&lending->lock);
	wake_up_all(&lending->changes);
	return err;
}

int insula_lending_take(struct insula_lending *lending, const struct insula_frames *range,
			u32 patience_ms)
{
	unsigned long deadline = jiffies + msecs_to_jiffies(patience_ms);
	struct insula_frames frames = *range;
	int err = tell(lending, &frames, deadline);

	if (!err)
		wait_event_timeout(lending->changes, is_settled(lending, frames.number),
				   max_t(long, deadline - jiffies, 1));
	if (!err && has_returned(lending, frames.number))
		return 0;
	/* One that is being ended otherwise may still execute: that is for us to see to. */
	return insula_own_end_left(&lending->end) ? 0 : stop(lending);
}

void insula_lending_end(struct insula_lending *lending, bool lost)
{
	if (!lending)
		return;
	mutex_lock(&lending->lock);
	WRITE_ONCE(lending->ended, true);
	lending->lost |= lost;
	mutex_unlock(&lending->lock);
	wake_up_all(&lending->changes);
}
