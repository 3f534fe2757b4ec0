// SPDX-License-Identifier: GPL-2.0-only
/* When the kernel of a shared core wants to be entered, and how long it may run. */
#include <linux/compiler.h>
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/minmax.h>
#include <linux/time64.h>

#include <asm/tsc.h>

#include "arch/x86/processor.h"
#include "arch/x86/shared_core_internal.h"
#include "insula_shared_core.h"

/* Longer timeouts are looked at earlier. */
#define TIMEOUT_MAX_NS		(3600 * NSEC_PER_SEC)
/* Of the share, for each entry: interrupts and timers around it. */
#define ENTRY_NS		(2 * NSEC_PER_USEC)

u64 insula_shared_core_share_ns(const struct insula_shared_core_state *core)
{
	return SHARED_CORE_PERIOD_NS / 100 * core->percent;
}

u64 insula_shared_core_left_ns(const struct insula_shared_core_state *core, u64 now_ns)
{
	u64 share_ns = insula_shared_core_share_ns(core);
	u64 spent_ns = READ_ONCE(core->spent_ns);

	if (now_ns - READ_ONCE(core->period_start_ns) >= SHARED_CORE_PERIOD_NS)
		return share_ns;
	return spent_ns < share_ns ? share_ns - spent_ns : 0;
}

void insula_shared_core_account(struct insula_shared_core_state *core, u64 began_ns)
{
	u64 now_ns = ktime_get_mono_fast_ns(), share_ns = insula_shared_core_share_ns(core);
	u64 spent_ns = core->spent_ns + now_ns - began_ns + ENTRY_NS;

	WRITE_ONCE(core->spent_ns, spent_ns);
	if (spent_ns >= share_ns)
		WRITE_ONCE(core->period_start_ns, now_ns - share_ns);
}

/* The deadline is the kernel's own word, and may be anything. */
s64 insula_shared_core_wait_ns(const struct insula_shared_core_state *core)
{
	s64 max_ticks = (u64)tsc_khz * (TIMEOUT_MAX_NS / NSEC_PER_MSEC);
	u64 deadline = READ_ONCE(core->core_switch.shared->deadline);
	s64 ticks;

	if (deadline == U64_MAX)
		return S64_MAX;
	ticks = clamp_t(s64, deadline - insula_processor_tsc(), -max_ticks, max_ticks);
	if (ticks < 0)
		return -(s64)mul_u64_u32_div(-ticks, NSEC_PER_MSEC, tsc_khz);
	return mul_u64_u32_div(ticks, NSEC_PER_MSEC, tsc_khz);
}

u64 insula_shared_core_deadline_ns(const struct insula_shared_core_state *core, u64 now_ns)
{
	s64 wait_ns = insula_shared_core_wait_ns(core);

	if (wait_ns == S64_MAX)
		return U64_MAX;
	return now_ns + SHARED_CORE_TIMEOUT_MIN_NS + max_t(s64, wait_ns, 0);
}
