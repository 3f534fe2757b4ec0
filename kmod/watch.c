// SPDX-License-Identifier: GPL-2.0-only
/*
 * Watching running nodes for the bytes by which they say that they have ended.
 *
 * Mostly the node waits for its end when it has written one: our own kernel does, and Linux
 * once it is up, if it can be ended by a call (docs/src/node-view.md). But a booting Linux
 * that wants a reset must be stopped fast: it waits 15 ms after having written the ACPI
 * reset register (drivers/acpi/reboot.c), then tries means that would reset the whole
 * machine. Hence a timer interrupt and not a thread, and a short period for as long as
 * there is such a node.
 */
#include "insula_module.h"

#include <linux/hrtimer.h>
#include <linux/spinlock.h>

#include "compat/timer.h"
#include "core.h"
#include "insula_channel.h"
#include "watch.h"

#define WATCH_PERIOD_NS		(2 * NSEC_PER_MSEC)
/* If all wait: so that the base has rest, and nobody who waits for an end sees a difference. */
#define CALM_PERIOD_NS		(10 * NSEC_PER_MSEC)

static struct {
	spinlock_t lock;	/* watches */
	struct list_head watches;
	struct hrtimer timer;
} watching = {
	.lock = __SPIN_LOCK_UNLOCKED(watching.lock),
	.watches = LIST_HEAD_INIT(watching.watches),
};

/* The node owns these bytes: each is read once, and only compared. */
static enum insula_reason look(const struct insula_watch *watch)
{
	if (READ_ONCE(*watch->reset))
		return INSULA_REASON_RESET;
	if (READ_ONCE(*watch->power_off))
		return INSULA_REASON_POWER_OFF;
	return INSULA_REASON_NONE;
}

static bool waits(const struct insula_watch *watch)
{
	return watch->waits ||
	       (watch->told && READ_ONCE(*watch->told) & INSULA_AREA_ENDS_BY_CALL);
}

/* Under the lock. */
static u64 period_ns(void)
{
	const struct insula_watch *watch;

	list_for_each_entry(watch, &watching.watches, link)
		if (!waits(watch))
			return WATCH_PERIOD_NS;
	return CALM_PERIOD_NS;
}

static enum hrtimer_restart tick(struct hrtimer *timer)
{
	enum hrtimer_restart restart = HRTIMER_NORESTART;
	struct insula_watch *watch, *next;
	enum insula_reason reason;
	unsigned long flags;

	spin_lock_irqsave(&watching.lock, flags);
	list_for_each_entry_safe(watch, next, &watching.watches, link) {
		reason = look(watch);
		if (reason == INSULA_REASON_NONE)
			continue;
		insula_cores_reset(watch->cpus, watch->cpus_count);
		list_del_init(&watch->link);
		watch->ended(watch, reason);
	}
	/* Started by insula_watch_add() since this was called, it must be left as it is. */
	if (!list_empty(&watching.watches) && !hrtimer_is_queued(timer)) {
		hrtimer_forward_now(timer, period_ns());
		restart = HRTIMER_RESTART;
	}
	spin_unlock_irqrestore(&watching.lock, flags);
	return restart;
}

void insula_watch_init(void)
{
	insula_hrtimer_setup(&watching.timer, tick);
}

void insula_watch_exit(void)
{
	hrtimer_cancel(&watching.timer);
}

void insula_watch_add(struct insula_watch *watch)
{
	unsigned long flags;

	spin_lock_irqsave(&watching.lock, flags);
	list_add_tail(&watch->link, &watching.watches);
	hrtimer_start(&watching.timer, WATCH_PERIOD_NS, HRTIMER_MODE_REL);
	spin_unlock_irqrestore(&watching.lock, flags);
}

void insula_watch_remove(struct insula_watch *watch)
{
	unsigned long flags;

	spin_lock_irqsave(&watching.lock, flags);
	list_del_init(&watch->link);
	spin_unlock_irqrestore(&watching.lock, flags);
}

void insula_watch_change(struct insula_watch *watch, const u32 *cpus, u32 cpus_count)
{
	unsigned long flags;

	spin_lock_irqsave(&watching.lock, flags);
	watch->cpus = cpus;
	watch->cpus_count = cpus_count;
	spin_unlock_irqrestore(&watching.lock, flags);
}
