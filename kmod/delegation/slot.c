// SPDX-License-Identifier: GPL-2.0-only
/*
 * Base side of a syscall slot: the attached thread, which waits for calls of the node.
 * Allocation of slots is in slots.c.
 */
#include "delegation/slot.h"

#include <linux/jiffies.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>

#include "delegation/slots.h"

/* Polls of the sequence number before sleeping, in the middle of a call. */
#define POLLS	2000
/* Most consecutive remote faults for the same page. */
#define FAULT_ATTEMPTS	8

void insula_slot_init(struct insula_syscall_slot *slot, struct insula_slots *slots,
		      struct insula_lwk_syscall_slot *shared, u32 index)
{
	slot->slots = slots;
	slot->shared = shared;
	slot->index = index;
	spin_lock_init(&slot->lock);
	init_waitqueue_head(&slot->waitqueue);
}

void insula_slot_wake(struct insula_syscall_slot *slot)
{
	wake_up_all(&slot->waitqueue);
}

void insula_slot_disconnect(struct insula_syscall_slot *slot)
{
	spin_lock_irq(&slot->lock);
	spin_unlock_irq(&slot->lock);
	insula_slot_wake(slot);
}

void insula_slot_cancel(struct insula_syscall_slot *slot)
{
	unsigned long flags;

	spin_lock_irqsave(&slot->lock, flags);
	if (slot->task)
		send_sig(INSULA_MIRROR_CANCEL_SIGNAL, slot->task, 1);
	else
		slot->cancel = true;
	spin_unlock_irqrestore(&slot->lock, flags);
}

/* Report whether the thread waits for a page. Under the slot's lock. */
static void slot_set_faulting(struct insula_syscall_slot *slot, bool faulting)
{
	if (!insula_slots_disconnected(slot->slots))
		smp_store_release(&slot->shared->faulting, faulting); /* after the page is mapped */
}

void insula_slot_clear(struct insula_syscall_slot *slot)
{
	struct task_struct *task;

	spin_lock_irq(&slot->lock);
	task = slot->task;
	slot->task = NULL;
	slot_set_faulting(slot, false);
	spin_unlock_irq(&slot->lock);
	if (task)
		put_task_struct(task);
	WRITE_ONCE(slot->taken, false);
}

int insula_slot_attach(struct insula_syscall_slot *slot)
{
	int err = -EBUSY;

	spin_lock_irq(&slot->lock);
	if (!slot->task) {
		slot->task = get_task_struct(current);
		slot->fault = (struct insula_remote_fault) {};
		if (slot->cancel)
			send_sig(INSULA_MIRROR_CANCEL_SIGNAL, current, 1);
		slot->cancel = false;
		err = 0;
	}
	spin_unlock_irq(&slot->lock);
	return err;
}

/* Whether the node has posted an entry that is not answered. */
static bool slot_is_posted(const struct insula_syscall_slot *slot)
{
	u64 sequence = smp_load_acquire(&slot->shared->sequence); /* before the entry */

	return sequence != READ_ONCE(slot->shared->answer_sequence);
}

/* Whether waiting is over: an entry is posted, or the node has ended. */
static bool slot_is_ready(const struct insula_syscall_slot *slot)
{
	return slot_is_posted(slot) || insula_slots_disconnected(slot->slots);
}

static void slot_set_asleep(struct insula_syscall_slot *slot, bool asleep)
{
	spin_lock_irq(&slot->lock);
	if (!insula_slots_disconnected(slot->slots))
		WRITE_ONCE(slot->shared->base_asleep, asleep);
	spin_unlock_irq(&slot->lock);
	smp_mb(); /* either a node posting now sees the flag, or we see its entry */
}

/* Sleep until slot_is_ready(). -ETIMEDOUT after `timeout` jiffies. */
static int slot_sleep(struct insula_syscall_slot *slot, unsigned int task_state, long timeout)
{
	DEFINE_WAIT(entry);
	int err = 0;

	slot_set_asleep(slot, true);
	while (!err) {
		prepare_to_wait(&slot->waitqueue, &entry, task_state);
		if (slot_is_ready(slot))
			break;
		if (signal_pending_state(task_state, current))
			err = -EINTR;
		else if (!timeout)
			err = -ETIMEDOUT;
		else
			timeout = schedule_timeout(timeout);
	}
	finish_wait(&slot->waitqueue, &entry);
	slot_set_asleep(slot, false);
	return insula_slots_disconnected(slot->slots) ? -EPIPE : err;
}

int insula_slot_wait(struct insula_syscall_slot *slot)
{
	return slot_sleep(slot, TASK_INTERRUPTIBLE, MAX_SCHEDULE_TIMEOUT);
}

void insula_slot_ring(struct insula_syscall_slot *slot)
{
	insula_slots_ring(slot->slots, &slot->shared->lwk_asleep);
}

/* Poll for the node's next entry for a while, unless another task wants the core. */
static void slot_poll(const struct insula_syscall_slot *slot)
{
	int polls = POLLS;

	while (polls-- && !slot_is_ready(slot) && !need_resched())
		cpu_relax();
}

/* Answer the posted call with a fault. */
static int slot_post_fault(struct insula_syscall_slot *slot, u64 address, bool write)
{
	struct insula_lwk_syscall_slot *shared = slot->shared;
	int err = 0;

	spin_lock_irq(&slot->lock);
	if (insula_slots_disconnected(slot->slots)) {
		err = -EPIPE;
	} else if (!slot_is_posted(slot)) {
		err = -EIO;
	} else {
		slot_set_faulting(slot, true);
		shared->kind = INSULA_LWK_FAULT;
		shared->result = address;
		shared->value = write;
		/* After the answer's fields. */
		smp_store_release(&shared->answer_sequence, READ_ONCE(shared->sequence));
	}
	spin_unlock_irq(&slot->lock);
	return err;
}

static int slot_fault(struct insula_syscall_slot *slot, u64 address, bool write,
		      unsigned int timeout_ms)
{
	int err = slot_post_fault(slot, address, write);

	if (err)
		return err;
	insula_slot_ring(slot);
	slot_poll(slot);
	err = slot_sleep(slot, TASK_KILLABLE, msecs_to_jiffies(timeout_ms));
	if (err)
		return err;
	if (READ_ONCE(slot->shared->number) != INSULA_LWK_RESOLVED)
		return -EIO;
	return READ_ONCE(slot->shared->arguments[0]) ? -EFAULT : 0;
}

/* Whether a fault repeats the last one, and the node has posted nothing since. */
static bool slot_is_repeated(const struct insula_syscall_slot *slot, u64 address, bool write)
{
	const struct insula_remote_fault *fault = &slot->fault;

	return fault->attempts && fault->address == address && fault->write == write &&
	       fault->sequence == READ_ONCE(slot->shared->sequence);
}

int insula_slot_may_fault(const struct insula_syscall_slot *slot, u64 address, bool write)
{
	if (!slot_is_repeated(slot, address, write))
		return 0;
	if (slot->fault.err)
		return slot->fault.err;
	return slot->fault.attempts < FAULT_ATTEMPTS ? 0 : -EIO;
}

int insula_slot_fault(struct insula_syscall_slot *slot, u64 address, bool write,
		      unsigned int timeout_ms)
{
	unsigned int attempts = slot_is_repeated(slot, address, write) ? slot->fault.attempts : 0;
	int err = slot_fault(slot, address, write, timeout_ms);

	slot->fault = (struct insula_remote_fault) {
		.address = address,
		.write = write,
		.sequence = READ_ONCE(slot->shared->sequence),
		.attempts = attempts + 1,
		.err = err,
	};
	return err;
}

void insula_slot_looked_up(struct insula_syscall_slot *slot, bool found)
{
	if (!slot->fault.attempts)
		return;
	spin_lock_irq(&slot->lock);
	slot_set_faulting(slot, false);
	spin_unlock_irq(&slot->lock);
	if (found)
		slot->fault = (struct insula_remote_fault) {};
}
