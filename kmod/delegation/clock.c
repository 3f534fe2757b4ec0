// SPDX-License-Identifier: GPL-2.0-only
/*
 * The base's clocks in memory that a node's programs read, like the base's own vDSO data:
 * updated at each correction of timekeeping (ticks, NTP, settimeofday), so both sides always
 * count at the same rate.
 *
 * The published clock never steps back behind a time that a reader may have seen: if it is
 * ahead (by nanoseconds, since writing a correction takes time, or by more if the base's clock
 * source is not the TSC), it runs slower until the base's clock has caught up.
 */
#include "delegation/clock.h"

#include <linux/clocksource.h>
#include <linux/math64.h>
#include <linux/minmax.h>
#include <linux/pvclock_gtod.h>
#include <linux/timekeeper_internal.h>

#include "arch/x86/processor.h"

/* Bits of the fraction of a nanosecond. */
#define FRACTION_BITS	32
/* Time in which the base's clock catches up with a published clock that is ahead. */
#define CATCH_UP_MS		100

/* CLOCK_MONOTONIC by a published clock. */
struct reading {
	u64 ns;
	u32 fraction;
};

static struct reading clock_read_at(const struct insula_lwk_clock *clock, u64 tsc)
{
	u64 ticks = tsc > clock->tsc ? tsc - clock->tsc : 0;
	u64 ns = mul_u64_u64_shr(ticks, clock->mult, FRACTION_BITS);
	u64 fraction = clock->fraction + (u32)(ticks * clock->mult);

	return (struct reading) {
		.ns = clock->monotonic_ns + ns + (fraction >> FRACTION_BITS),
		.fraction = (u32)fraction,
	};
}

/* Adjust `next` to start no earlier than `last` at `now`, the latest time readers can have seen. */
static void clock_stay_monotonic(const struct insula_lwk_clock *last, struct insula_lwk_clock *next,
				 u64 now)
{
	u64 catch_up = (u64)CATCH_UP_MS * insula_processor_tsc_khz();
	u64 offset = next->realtime_ns - next->monotonic_ns;
	struct reading old = clock_read_at(last, now), new = clock_read_at(next, now);
	s64 ahead_ns = old.ns - new.ns, ahead;

	if (!last->mult || ahead_ns < 0 || (!ahead_ns && old.fraction <= new.fraction))
		return;
	ahead = (min_t(s64, ahead_ns, NSEC_PER_SEC) << FRACTION_BITS) + old.fraction - new.fraction;
	next->tsc = now;
	next->monotonic_ns = old.ns;
	next->fraction = old.fraction;
	next->realtime_ns = old.ns + offset;
	next->mult -= min(next->mult, div64_u64(ahead, catch_up));
}

static void clock_write(struct insula_clock *clock, struct insula_lwk_clock *next)
{
	struct insula_lwk_clock *shared = clock->shared;

	WRITE_ONCE(shared->sequence, clock->last.sequence + 1);
	smp_mb(); /* readers after `now` see the odd sequence, and wait for the update */
	clock_stay_monotonic(&clock->last, next, insula_processor_tsc());
	WRITE_ONCE(shared->tsc, next->tsc);
	WRITE_ONCE(shared->realtime_ns, next->realtime_ns);
	WRITE_ONCE(shared->monotonic_ns, next->monotonic_ns);
	WRITE_ONCE(shared->fraction, next->fraction);
	WRITE_ONCE(shared->mult, next->mult);
	next->sequence = clock->last.sequence + 2;
	smp_wmb(); /* after all fields */
	WRITE_ONCE(shared->sequence, next->sequence);
	clock->last = *next;
}

/* Set both times from the timekeeper's base plus `shifted_ns`, in units of its clock's shift. */
static void clock_set_time(struct insula_lwk_clock *next, const struct timekeeper *timekeeper,
			   u64 shifted_ns)
{
	const struct tk_read_base *base = &timekeeper->tkr_mono;

	next->monotonic_ns = ktime_to_ns(base->base) + (shifted_ns >> base->shift);
	next->fraction = (u32)(shifted_ns << (FRACTION_BITS - base->shift));
	next->realtime_ns = next->monotonic_ns + ktime_to_ns(timekeeper->offs_real);
}

static void clock_from_tsc(struct insula_lwk_clock *next,
			   const struct timekeeper *timekeeper)
{
	const struct tk_read_base *base = &timekeeper->tkr_mono;

	next->tsc = base->cycle_last;
	next->mult = (u64)base->mult << (FRACTION_BITS - base->shift);
	clock_set_time(next, timekeeper, base->xtime_nsec);
}

static void clock_from_other_counter(struct insula_lwk_clock *next,
				     const struct timekeeper *timekeeper)
{
	const struct tk_read_base *base = &timekeeper->tkr_mono;
	u64 cycles = (base->clock->read(base->clock) - base->cycle_last) & base->mask;

	next->tsc = insula_processor_tsc();
	next->mult = div_u64(1000000ULL << FRACTION_BITS, insula_processor_tsc_khz());
	clock_set_time(next, timekeeper, base->xtime_nsec + cycles * base->mult);
}

/* Called with timekeeping locked: clocks cannot be read by ktime_get() and the like. */
static int clock_timekeeping_updated(struct notifier_block *block, unsigned long was_set,
				     void *data)
{
	struct insula_clock *clock = container_of(block, struct insula_clock, notifier);
	const struct timekeeper *timekeeper = data;
	struct insula_lwk_clock next = {};

	if (timekeeper->tkr_mono.clock->vdso_clock_mode == VDSO_CLOCKMODE_TSC)
		clock_from_tsc(&next, timekeeper);
	else
		clock_from_other_counter(&next, timekeeper);
	clock_write(clock, &next);
	return NOTIFY_OK;
}

void insula_clock_start(struct insula_clock *clock, struct insula_lwk_clock *shared)
{
	clock->shared = shared;
	clock->notifier.notifier_call = clock_timekeeping_updated;
	clock->registered = true;
	/* Calls the notifier at once. */
	pvclock_gtod_register_notifier(&clock->notifier);
}

void insula_clock_stop(struct insula_clock *clock)
{
	if (clock->registered)
		pvclock_gtod_unregister_notifier(&clock->notifier);
	clock->registered = false;
}
