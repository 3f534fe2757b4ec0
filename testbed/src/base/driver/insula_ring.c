// SPDX-License-Identifier: GPL-2.0-only
/*
 * Driver for benchmarks: writing a number of rounds to the parameter `rounds` rings a core's
 * doorbell that often, and measures the time until the core's kernel has handled it, which stores
 * the time stamp counter then (insula_lwk.h, interrupted_at). The times are in debugfs, one u64 for
 * each round.
 */
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/io.h>
#include <linux/irqflags.h>
#include <linux/kprobes.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>

#include <asm/apic.h>
#include <asm/msr.h>
#include <asm/tsc.h>

#define ROUNDS_MAX	20000
/* Longer than a core has interrupts off. */
#define TIMEOUT_MS	2000
/* Between rounds: the core gets something else done. */
#define PAUSE_US	200

static unsigned int apic_id;
module_param(apic_id, uint, 0600);
MODULE_PARM_DESC(apic_id, "local APIC of the core");

static unsigned int vector;
module_param(vector, uint, 0600);
MODULE_PARM_DESC(vector, "vector of its doorbell");

static unsigned long long word;
module_param(word, ullong, 0600);
MODULE_PARM_DESC(word, "physical address of the word that it stores to");

static bool by_nmi;
module_param(by_nmi, bool, 0600);
MODULE_PARM_DESC(by_nmi, "ring as insula.ko does, by an NMI");

static DEFINE_MUTEX(lock);
static struct dentry *folder;
static u64 *ticks;
static struct debugfs_blob_wrapper results;

/* Of insula.ko, which exports it to none. */
static bool (*shared_core_ring)(u32 apic_id, u8 vector);

/* As the module's own symbols.c does. */
static int find_shared_core_ring(void)
{
	struct kprobe probe = { .symbol_name = "insula_shared_core_ring" };
	int err = register_kprobe(&probe);

	if (err)
		return err;
	shared_core_ring = (void *)probe.addr;
	unregister_kprobe(&probe);
	return 0;
}

/* The counter just before the core is interrupted. */
static u64 ring(void)
{
	unsigned long flags;
	u64 began;

	local_irq_save(flags);
	began = rdtsc_ordered();
	if (by_nmi)
		shared_core_ring(apic_id, vector);
	else
		apic->icr_write(APIC_DM_FIXED | vector, apic_id);
	local_irq_restore(flags);
	return began;
}

/* -ETIMEDOUT: it was not handled. */
static int measure(const u64 *handled_at, u64 *took)
{
	u64 before = READ_ONCE(*handled_at), began = ring(), after;

	do {
		cpu_relax();
		after = READ_ONCE(*handled_at);
		if (rdtsc() - began > (u64)tsc_khz * TIMEOUT_MS)
			return -ETIMEDOUT;
		/* An earlier ring of someone else counts as none. */
	} while (after == before || (s64)(after - began) < 0);
	*took = after - began;
	return 0;
}

static int run(const u64 *handled_at, unsigned int rounds)
{
	unsigned int i;
	int err;

	for (i = 0; i < rounds; i++) {
		err = measure(handled_at, &ticks[i]);
		if (err)
			return err;
		usleep_range(PAUSE_US, 2 * PAUSE_US);
	}
	results.size = rounds * sizeof(*ticks);
	return 0;
}

static int set_rounds(const char *text, const struct kernel_param *parameter)
{
	unsigned int rounds;
	u64 *handled_at;
	int err = kstrtouint(text, 0, &rounds);

	if (err)
		return err;
	if (!rounds || rounds > ROUNDS_MAX || !word || word % sizeof(u64))
		return -EINVAL;
	if (by_nmi && !shared_core_ring) {
		err = find_shared_core_ring();
		if (err)
			return err;
	}
	handled_at = memremap(word, sizeof(u64), MEMREMAP_WB);
	if (!handled_at)
		return -ENXIO;
	mutex_lock(&lock);
	err = run(handled_at, rounds);
	mutex_unlock(&lock);
	memunmap(handled_at);
	return err;
}

static const struct kernel_param_ops rounds_ops = { .set = set_rounds };

module_param_cb(rounds, &rounds_ops, NULL, 0200);

static int __init ring_init(void)
{
	ticks = kvcalloc(ROUNDS_MAX, sizeof(*ticks), GFP_KERNEL);
	if (!ticks)
		return -ENOMEM;
	results.data = ticks;
	folder = debugfs_create_dir("insula_ring", NULL);
	debugfs_create_blob("ticks", 0400, folder, &results);
	return 0;
}

static void __exit ring_exit(void)
{
	debugfs_remove(folder);
	kvfree(ticks);
}

module_init(ring_init);
module_exit(ring_exit);
MODULE_DESCRIPTION("Times of doorbells, for benchmarks of Insula");
MODULE_LICENSE("GPL");
