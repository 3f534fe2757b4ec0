// SPDX-License-Identifier: GPL-2.0-only
/*
 * Polling of running nodes for the bytes by which they report their end.
 *
 * Most nodes wait to be stopped after setting one: the LWK does, and Linux once it is up, if it
 * can reset by a call (docs/src/node-view.md). But a booting Linux that requests a reset must
 * be stopped fast: it waits 15 ms after writing the ACPI reset register
 * (drivers/acpi/reboot.c), then tries means that would reset the whole machine. Hence a timer
 * interrupt and not a thread, and a short period while there is such a node.
 */
#include "insula_module.h"

#include <linux/hrtimer.h>
#include <linux/spinlock.h>

#include "compat/timer.h"
#include "cpu/core.h"
#include "insula_channel.h"
#include "insula_monitor.h"
#include "node/exit_poll.h"

#define FAST_PERIOD_NS		(2 * NSEC_PER_MSEC)
/* If all nodes wait: fewer interrupts for the base, and still no visible delay. */
#define SLOW_PERIOD_NS		(10 * NSEC_PER_MSEC)

static struct {
	spinlock_t lock;	/* list */
	struct list_head list;
	struct hrtimer timer;
} exit_polls = {
	.lock = __SPIN_LOCK_UNLOCKED(exit_polls.lock),
	.list = LIST_HEAD_INIT(exit_polls.list),
};

/* The node owns these bytes: each is read once, and only compared. */
static enum insula_reason exit_poll_reason(const struct insula_exit_poll *poll)
{
	u32 ended = poll->monitor ? READ_ONCE(*poll->monitor) : INSULA_MONITOR_RUNS;

	if (ended != INSULA_MONITOR_RUNS)
		return ended == INSULA_MONITOR_RESET ? INSULA_REASON_RESET :
						       INSULA_REASON_VIOLATION;
	if (READ_ONCE(*poll->reset))
		return INSULA_REASON_RESET;
	if (READ_ONCE(*poll->power_off))
		return INSULA_REASON_POWER_OFF;
	return INSULA_REASON_NONE;
}

static bool exit_poll_waits(const struct insula_exit_poll *poll)
{
	/* A monitor lets no reset reach the machine. */
	return poll->waits || poll->monitor ||
	       (poll->node_flags && READ_ONCE(*poll->node_flags) & INSULA_AREA_RESETS_BY_CALL);
}

/* Lock held. */
static u64 exit_poll_period_ns(void)
{
	const struct insula_exit_poll *poll;

	list_for_each_entry(poll, &exit_polls.list, link)
		if (!exit_poll_waits(poll))
			return FAST_PERIOD_NS;
	return SLOW_PERIOD_NS;
}

static enum hrtimer_restart exit_poll_tick(struct hrtimer *timer)
{
	enum hrtimer_restart restart = HRTIMER_NORESTART;
	struct insula_exit_poll *poll, *next;
	enum insula_reason reason;
	unsigned long flags;

	spin_lock_irqsave(&exit_polls.lock, flags);
	list_for_each_entry_safe(poll, next, &exit_polls.list, link) {
		reason = exit_poll_reason(poll);
		if (reason == INSULA_REASON_NONE)
			continue;
		insula_cores_reset(poll->cpus, poll->cpus_count);
		list_del_init(&poll->link);
		poll->ended(poll, reason);
	}
	/* If insula_exit_poll_add() has started it meanwhile, it must not be changed. */
	if (!list_empty(&exit_polls.list) && !hrtimer_is_queued(timer)) {
		hrtimer_forward_now(timer, exit_poll_period_ns());
		restart = HRTIMER_RESTART;
	}
	spin_unlock_irqrestore(&exit_polls.lock, flags);
	return restart;
}

void insula_exit_poll_init(void)
{
	insula_hrtimer_setup(&exit_polls.timer, exit_poll_tick);
}

void insula_exit_poll_exit(void)
{
	hrtimer_cancel(&exit_polls.timer);
}

void insula_exit_poll_add(struct insula_exit_poll *poll)
{
	unsigned long flags;

	spin_lock_irqsave(&exit_polls.lock, flags);
	list_add_tail(&poll->link, &exit_polls.list);
	hrtimer_start(&exit_polls.timer, FAST_PERIOD_NS, HRTIMER_MODE_REL);
	spin_unlock_irqrestore(&exit_polls.lock, flags);
}

void insula_exit_poll_remove(struct insula_exit_poll *poll)
{
	unsigned long flags;

	spin_lock_irqsave(&exit_polls.lock, flags);
	list_del_init(&poll->link);
	spin_unlock_irqrestore(&exit_polls.lock, flags);
}

void insula_exit_poll_set_cpus(struct insula_exit_poll *poll, const u32 *cpus, u32 cpus_count)
{
	unsigned long flags;

	spin_lock_irqsave(&exit_polls.lock, flags);
	poll->cpus = cpus;
	poll->cpus_count = cpus_count;
	spin_unlock_irqrestore(&exit_polls.lock, flags);
}
