// SPDX-License-Identifier: GPL-2.0-only
/*
 * Driver for tests: writing a number of milliseconds to the parameter `spin_ms` has the writing
 * core spin with interrupts off for that long, to `stop_ms` all cores.
 */
#include <linux/cpumask.h>
#include <linux/irqflags.h>
#include <linux/module.h>
#include <linux/stop_machine.h>
#include <linux/timekeeping.h>

/* Less than what watchdogs tolerate. */
#define SPIN_MAX_MS	10000
/* For good: until a reset. Watchdogs tolerate 20 s, but do not run meanwhile. */
#define STOP_MAX_MS	3600000

/* Not mdelay(), which adds up short delays: on a busy host each takes longer than it is. */
static void busy_wait(unsigned int ms)
{
	u64 end_ns = ktime_get_mono_fast_ns() + (u64)ms * NSEC_PER_MSEC;

	while (ktime_get_mono_fast_ns() < end_ns)
		cpu_relax();
}

static int spin(const char *text, const struct kernel_param *parameter)
{
	unsigned long flags;
	unsigned int ms;
	int err = kstrtouint(text, 0, &ms);

	if (err)
		return err;
	if (ms > SPIN_MAX_MS)
		return -EINVAL;
	local_irq_save(flags);
	busy_wait(ms);
	local_irq_restore(flags);
	return 0;
}

static const struct kernel_param_ops spin_ops = { .set = spin };

module_param_cb(spin_ms, &spin_ops, NULL, 0200);

static int stop_core(void *ms)
{
	busy_wait(*(unsigned int *)ms);
	return 0;
}

static int stop(const char *text, const struct kernel_param *parameter)
{
	unsigned int ms;
	int err = kstrtouint(text, 0, &ms);

	if (err)
		return err;
	if (ms > STOP_MAX_MS)
		return -EINVAL;
	return stop_machine(stop_core, &ms, cpu_online_mask);
}

static const struct kernel_param_ops stop_ops = { .set = stop };

module_param_cb(stop_ms, &stop_ops, NULL, 0200);

MODULE_DESCRIPTION("A core with interrupts off, for tests of Insula");
MODULE_LICENSE("GPL");
