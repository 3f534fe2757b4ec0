// SPDX-License-Identifier: GPL-2.0-only
/*
 * Driver for tests: forces a race. It holds the next call of the function `symbol`, of at
 * most four arguments, before the function's first instruction, and, with `reboot`, the
 * base's reboot after all other notifiers, until `release` is written or LIMIT_S have
 * passed. `held` and `rebooting` report that the call or the reboot is held. With `process`
 * only that process's calls count. With `error` the call is not held: it is not made, and returns
 * that.
 */
#include <linux/atomic.h>
#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/reboot.h>
#include <linux/sched.h>

#define LIMIT_S	60

static char *symbol;
module_param(symbol, charp, 0);
static int process;
module_param(process, int, 0);
/* A negative errno. */
static int error;
module_param(error, int, 0);
static bool reboot;
module_param(reboot, bool, 0);
/* The held caller sleeps: only in contexts that may sleep. */
static bool asleep;
module_param(asleep, bool, 0);
static bool held;
module_param(held, bool, 0444);
static bool rebooting;
module_param(rebooting, bool, 0444);
static bool release;
module_param(release, bool, 0644);

static atomic_t armed = ATOMIC_INIT(1);
static atomic_t inside = ATOMIC_INIT(0);

static bool is_over(unsigned long deadline)
{
	return READ_ONCE(release) || time_after(jiffies, deadline);
}

static u64 hold(u64 first, u64 second, u64 third, u64 fourth);

/* Redirects the first call to hold(). */
static int called(struct kprobe *probe, struct pt_regs *regs)
{
	if (process && current->tgid != process)
		return 0;
	if (!atomic_xchg(&armed, 0))
		return 0;
	atomic_inc(&inside);
	regs->ip = (unsigned long)hold;
	return 1;
}

static struct kprobe probe = { .pre_handler = called };

/* Spins unless `asleep`: the core then looks busy to the kernel. */
static u64 hold(u64 first, u64 second, u64 third, u64 fourth)
{
	u64 (*function)(u64 first, u64 second, u64 third, u64 fourth) = (void *)probe.addr;
	unsigned long deadline = jiffies + LIMIT_S * HZ;
	u64 answer;

	WRITE_ONCE(held, true);
	while (!error && !is_over(deadline)) {
		if (asleep)
			msleep(20);
		else
			cpu_relax();
	}
	answer = error ? (u64)(s64)error : function(first, second, third, fourth);
	atomic_dec(&inside);
	return answer;
}

static int base_reboots(struct notifier_block *block, unsigned long action, void *data)
{
	unsigned long deadline = jiffies + LIMIT_S * HZ;

	WRITE_ONCE(rebooting, true);
	while (!is_over(deadline))
		msleep(20);
	return NOTIFY_DONE;
}

static struct notifier_block last = { .notifier_call = base_reboots, .priority = INT_MIN };

static int __init hold_init(void)
{
	int err;

	probe.symbol_name = symbol;
	err = symbol ? register_kprobe(&probe) : 0;
	if (err || !reboot)
		return err;
	err = register_reboot_notifier(&last);
	if (err && symbol)
		unregister_kprobe(&probe);
	return err;
}

static void __exit hold_exit(void)
{
	WRITE_ONCE(release, true);
	if (reboot)
		unregister_reboot_notifier(&last);
	if (symbol)
		unregister_kprobe(&probe);
	while (atomic_read(&inside))
		msleep(20);
}

module_init(hold_init);
module_exit(hold_exit);

MODULE_DESCRIPTION("Driver for Insula's tests: forces races");
MODULE_LICENSE("GPL");
