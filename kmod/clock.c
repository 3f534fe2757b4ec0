// SPDX-License-Identifier: GPL-2.0-only
/*
 * The base's clocks in memory that a node's programs read, as the vDSO's data are for the
 * base's own: at each correction of the timekeeping (the base's ticks, NTP, a clock that is
 * set) they are written anew, so both sides always count at the same rate.
 *
 * A clock that has been told is never told an earlier time than whoever reads it may have
 * seen: if it is ahead, by nanoseconds since a correction takes a moment to be written, or by
 * more since the base's clock is not the time stamp counter, it goes slower until the base's
 * has come up.
 */
#include "clock.h"

#include <linux/clocksource.h>
#include <linux/math64.h>
#include <linux/minmax.h>
#include <linux/pvclock_gtod.h>
#include <linux/timekeeper_internal.h>

#include <asm/tsc.h>

/* Bits of the fraction of a nanosecond. */
#define FRACTION_BITS	32
/* In which time a clock that is ahead is to be met. */
#define MEET_MS		100

/* CLOCK_MONOTONIC as a clock tells it. */
struct reading {
	u64 ns;
	u32 fraction;
};

static struct reading read_at(const struct insula_lwk_clock *clock, u64 tsc)
{
	u64 ticks = tsc > clock->tsc ? tsc - clock->tsc : 0;
	u64 ns = mul_u64_u64_shr(ticks, clock->mult, FRACTION_BITS);
	u64 fraction = clock->fraction + (u32)(ticks * clock->mult);

	return (struct reading) {
		.ns = clock->monotonic_ns + ns + (fraction >> FRACTION_BITS),
		.fraction = (u32)fraction,
	};
}

/* From `now` on, if nobody read anything told before any later: no earlier than that. */
static void never_back(const struct insula_lwk_clock *told, struct insula_lwk_clock *next, u64 now)
{
	u64 offset = next->realtime_ns - next->monotonic_ns, meet = (u64)MEET_MS * tsc_khz;
	struct reading old = read_at(told, now), new = read_at(next, now);
	s64 ahead_ns = old.ns - new.ns, ahead;

	if (!told->mult || ahead_ns < 0 || (!ahead_ns && old.fraction <= new.fraction))
		return;
	ahead = (min_t(s64, ahead_ns, NSEC_PER_SEC) << FRACTION_BITS) + old.fraction - new.fraction;
	next->tsc = now;
	next->monotonic_ns = old.ns;
	next->fraction = old.fraction;
	next->realtime_ns = old.ns + offset;
	next->mult -= min(next->mult, div64_u64(ahead, meet));
}

static void tell(struct insula_clock *clock, struct insula_lwk_clock *next)
{
	struct insula_lwk_clock *shared = clock->shared;

	WRITE_ONCE(shared->sequence, clock->told.sequence + 1);
	smp_mb(); /* who reads a later time than now goes by what is told next */
	never_back(&clock->told, next, rdtsc_ordered());
	WRITE_ONCE(shared->tsc, next->tsc);
	WRITE_ONCE(shared->realtime_ns, next->realtime_ns);
	WRITE_ONCE(shared->monotonic_ns, next->monotonic_ns);
	WRITE_ONCE(shared->fraction, next->fraction);
	WRITE_ONCE(shared->mult, next->mult);
	next->sequence = clock->told.sequence + 2;
	smp_wmb(); /* after all of it */
	WRITE_ONCE(shared->sequence, next->sequence);
	clock->told = *next;
}

/* What the timekeeping says of a time, as nanoseconds that are shifted by its clock's shift. */
static void set_time(struct insula_lwk_clock *next, const struct timekeeper *timekeeper,
		     u64 shifted_ns)
{
	const struct tk_read_base *base = &timekeeper->tkr_mono;

	next->monotonic_ns = ktime_to_ns(base->base) + (shifted_ns >> base->shift);
	next->fraction = (u32)(shifted_ns << (FRACTION_BITS - base->shift));
	next->realtime_ns = next->monotonic_ns + ktime_to_ns(timekeeper->offs_real);
}

static void by_time_stamp_counter(struct insula_lwk_clock *next,
				  const struct timekeeper *timekeeper)
{
	const struct tk_read_base *base = &timekeeper->tkr_mono;

	next->tsc = base->cycle_last;
	next->mult = (u64)base->mult << (FRACTION_BITS - base->shift);
	set_time(next, timekeeper, base->xtime_nsec);
}

static void by_other_counter(struct insula_lwk_clock *next, const struct timekeeper *timekeeper)
{
	const struct tk_read_base *base = &timekeeper->tkr_mono;
	u64 cycles = (base->clock->read(base->clock) - base->cycle_last) & base->mask;

	next->tsc = rdtsc_ordered();
	next->mult = div_u64(1000000ULL << FRACTION_BITS, tsc_khz);
	set_time(next, timekeeper, base->xtime_nsec + cycles * base->mult);
}

/* The timekeeping's lock is held: clocks cannot be read the usual way. */
static int corrected(struct notifier_block *block, unsigned long was_set, void *data)
{
	struct insula_clock *clock = container_of(block, struct insula_clock, follower);
	const struct timekeeper *timekeeper = data;
	struct insula_lwk_clock next = {};

	if (timekeeper->tkr_mono.clock->vdso_clock_mode == VDSO_CLOCKMODE_TSC)
		by_time_stamp_counter(&next, timekeeper);
	else
		by_other_counter(&next, timekeeper);
	tell(clock, &next);
	return NOTIFY_OK;
}

void insula_clock_begin(struct insula_clock *clock, struct insula_lwk_clock *shared)
{
	clock->shared = shared;
	clock->follower.notifier_call = corrected;
	clock->follows = true;
	/* It is called at once. */
	pvclock_gtod_register_notifier(&clock->follower);
}

void insula_clock_end(struct insula_clock *clock)
{
	if (clock->follows)
		pvclock_gtod_unregister_notifier(&clock->follower);
	clock->follows = false;
}
