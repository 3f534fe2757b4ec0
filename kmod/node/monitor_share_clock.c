// SPDX-License-Identifier: GPL-2.0-only
/*
 * When the monitor of a shared core is to look after the lightweight kernel there. It has no timer
 * for that kernel's timeouts and the end of its share: a timer of the base sends it an NMI then. It
 * says when, by a word and a doorbell, so there is no polling.
 */
#include "insula_module.h"

#include <linux/compiler.h>
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/minmax.h>
#include <linux/time64.h>

#include "arch/x86/processor.h"
#include "compat/timer.h"
#include "node/monitor_share_internal.h"

/* Times further away are looked at earlier. */
#define WAKE_MAX_MS		MSEC_PER_SEC

static u64 share_ticks_to_ns(u64 ticks)
{
	u32 khz = insula_processor_tsc_khz();

	return mul_u64_u32_div(min_t(u64, ticks, (u64)khz * WAKE_MAX_MS), NSEC_PER_MSEC, khz);
}

/*
 * Arm the clock for the time that the monitor wants, or tell that it has come. Either this sees the
 * monitor's latest time, or the monitor what is armed.
 */
static void share_set_clock(struct insula_monitor_sharing *share)
{
	struct insula_monitor_share *words = share_words(share);
	u64 wake_at, now;

	WRITE_ONCE(words->armed, U64_MAX);
	smp_mb(); /* as said above */
	wake_at = READ_ONCE(words->wake_at);
	if (!READ_ONCE(share->open) || wake_at == U64_MAX)
		return;
	now = insula_processor_tsc();
	if (wake_at <= now) {
		share_request(share);
		return;
	}
	WRITE_ONCE(words->armed, wake_at);
	hrtimer_start(&share->clock, ns_to_ktime(ktime_get_ns() + share_ticks_to_ns(wake_at - now)),
		      HRTIMER_MODE_ABS);
}

static void share_look(struct insula_monitor_sharing *share)
{
	unsigned long flags;

	raw_spin_lock_irqsave(&share->clock_lock, flags);
	share_set_clock(share);
	raw_spin_unlock_irqrestore(&share->clock_lock, flags);
}

static enum hrtimer_restart share_clock(struct hrtimer *clock)
{
	share_look(container_of(clock, struct insula_monitor_sharing, clock));
	return HRTIMER_NORESTART;
}

static void share_report_fault(struct insula_monitor_share *words, u32 cpu)
{
	u64 fault = xchg(&words->fault, 0);

	if (fault)
		pr_err("the kernel that shares cpu %u by its monitor failed: exit %#llx\n", cpu,
		       fault);
}

static void share_rung(struct insula_doorbell *doorbell)
{
	struct insula_monitor_sharing *share =
		container_of(doorbell, struct insula_monitor_sharing, doorbell);

	share_report_fault(share_words(share), share->cpu);
	share_look(share);
}

void insula_monitor_share_init_clock(struct insula_monitor_sharing *share)
{
	raw_spin_lock_init(&share->clock_lock);
	insula_hrtimer_setup(&share->clock, share_clock);
	share->doorbell.rung = share_rung;
}
