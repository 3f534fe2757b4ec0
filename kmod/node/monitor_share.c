// SPDX-License-Identifier: GPL-2.0-only
/*
 * Cores of confined nodes that a lightweight kernel (LWK) shares, by the monitor: protocol in
 * insula_monitor.h. What the monitor does there is up to vmm/.
 *
 * The core is the confined node's. If that ends, or returns the core, the LWK goes on: the core is
 * not reset, but its monitor asked to execute the node's kernel no more (an orphan). Monitor and
 * its memory stay until the LWK ends, too, and then the core is reset.
 */
#include "insula_module.h"

#include <linux/compiler.h>
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/file.h>
#include <linux/gfp.h>
#include <linux/hrtimer.h>
#include <linux/io.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/rcupdate.h>

#include <asm/cpufeature.h>

#include "arch/x86/processor.h"
#include "arch/x86/start.h"
#include "compat/cpuid.h"
#include "insula_monitor.h"
#include "insula_shared_core.h"
#include "node/monitor_share.h"
#include "node/monitor_share_internal.h"

#define SHARES_MAX		16
#define ANSWER_TIMEOUT		(5 * HZ)
#define POLL_US			50
/* The LWK's share is of this. */
#define PERIOD_MS		10
/* Where the LWK has the two pages: in the last GiB, which it leaves free for them. */
#define SHARE_PAGE		0xffffffffc0000000ULL
#define SHARE_CODE		(SHARE_PAGE + PAGE_SIZE)
/* Any, as no local APIC delivers it. */
#define SHARE_VECTOR		0x40
/* Below the last entry of the root: two tables, and one of pages. */
#define TABLES_ORDER		2
#define ENTRIES			512

static struct {
	struct mutex lock;	/* start and end; taken in memory reclaim */
	u64 starts;		/* of all: a monitor may not have seen an end */
	struct insula_monitor_sharing share[SHARES_MAX];
} shares = {
	.lock = __MUTEX_INITIALIZER(shares.lock),
};

static struct insula_monitor_sharing *share_find(u32 apic_id)
{
	u32 i;

	apic_id &= ~INSULA_MONITOR_SHARE_ID;
	for (i = 0; i < SHARES_MAX; i++)
		/* What is found has been filled in. */
		if (smp_load_acquire(&shares.share[i].used) &&
		    shares.share[i].core.apic_id == apic_id)
			return &shares.share[i];
	return NULL;
}

static struct insula_shared_core *share_page(const struct insula_monitor_sharing *share)
{
	return (void *)share->core.area + INSULA_MONITOR_SHARED;
}

/* What keeps a monitor from sharing cores, or NULL. */
static const char *share_obstacle(void)
{
	if (!boot_cpu_has(X86_FEATURE_XSAVE) || !boot_cpu_has(X86_FEATURE_RDTSCP))
		return "the processor lacks XSAVE or RDTSCP";
	if (boot_cpu_has(X86_FEATURE_XFD) || cpuid_ecx(0xd) > PAGE_SIZE)
		return "the processor's extended registers take more than 4 KiB";
	return NULL;
}

static struct insula_monitor_sharing *share_unused(void)
{
	u32 i;

	for (i = 0; i < SHARES_MAX; i++)
		if (!shares.share[i].used)
			return &shares.share[i];
	return NULL;
}

static void share_free(struct insula_monitor_sharing *share)
{
	free_pages((unsigned long)share->tables, TABLES_ORDER);
	fput(share->memory);
}

/* Fill in an unused one. */
static int share_init(struct insula_monitor_sharing *share, u32 cpu, u32 percent)
{
	int err;

	*share = (struct insula_monitor_sharing) { .cpu = cpu, .percent = percent };
	insula_monitor_share_init_clock(share);
	err = insula_monitor_cores_find(insula_processor_apic_id(cpu), &share->core,
					&share->memory);
	if (err)
		return err;
	share->tables = (u64 *)__get_free_pages(GFP_KERNEL | __GFP_ZERO, TABLES_ORDER);
	err = share->tables ? insula_doorbell_create(&share->doorbell) : -ENOMEM;
	if (err)
		share_free(share);
	return err;
}

/* Callers hold a lock, as those of insula_monitor_share_destroy(). */
static int share_create(u32 cpu, u32 percent)
{
	struct insula_monitor_sharing *share = share_unused();
	int err;

	if (!share || share_find(insula_processor_apic_id(cpu)))
		return -EBUSY;
	err = share_init(share, cpu, percent);
	if (err)
		return err;
	WRITE_ONCE(share_words(share)->open, 0);
	WRITE_ONCE(share_words(share)->armed, U64_MAX);
	WRITE_ONCE(share_words(share)->wake_at, U64_MAX);
	insula_doorbell_publish(&share->doorbell, &share_words(share)->doorbell);
	smp_store_release(&share->used, true); /* all else is filled in */
	return 0;
}

int insula_monitor_share_create(u32 cpu, u32 percent)
{
	const char *obstacle = share_obstacle();

	if (!obstacle)
		return share_create(cpu, percent);
	pr_err("cores cannot be shared by a monitor: %s\n", obstacle);
	return -EOPNOTSUPP;
}

void insula_monitor_share_destroy(u32 cpu)
{
	struct insula_monitor_sharing *share = share_find(insula_processor_apic_id(cpu));

	mutex_lock(&shares.lock);
	WRITE_ONCE(share->used, false);
	mutex_unlock(&shares.lock);
	synchronize_rcu(); /* for rings in flight */
	insula_doorbell_destroy(&share->doorbell);
	hrtimer_cancel(&share->clock);
	share_free(share);
}

/* Map both pages below the last entry of the root, in the LWK's memory. */
static void share_build_tables(const struct insula_monitor_sharing *share, u64 page_table)
{
	u64 area = virt_to_phys(share->core.area);
	u64 *upper = share->tables, *directory = upper + ENTRIES, *table = directory + ENTRIES;
	u64 *root = phys_to_virt(page_table);

	memset(share->tables, 0, PAGE_SIZE << TABLES_ORDER);
	table[pte_index(SHARE_PAGE)] = (area + INSULA_MONITOR_SHARED) | _PAGE_PRESENT | _PAGE_RW;
	table[pte_index(SHARE_CODE)] = (area + INSULA_MONITOR_SHARED_CODE) | _PAGE_PRESENT;
	directory[pmd_index(SHARE_PAGE)] = __pa(table) | _PAGE_PRESENT | _PAGE_RW;
	upper[ENTRIES - 1] = __pa(directory) | _PAGE_PRESENT | _PAGE_RW;
	root[ENTRIES - 1] = __pa(upper) | _PAGE_PRESENT | _PAGE_RW;
}

static void share_fill_page(const struct insula_monitor_sharing *share)
{
	struct insula_shared_core *page = share_page(share);
	u64 area = virt_to_phys(share->core.area);

	*page = (struct insula_shared_core) {
		.magic = INSULA_SHARED_CORE_MAGIC,
		.revision = INSULA_SHARED_CORE_REVISION,
		.vector = SHARE_VECTOR,
		.leave = SHARE_CODE,
		.code = SHARE_CODE,
		.code_frame = area + INSULA_MONITOR_SHARED_CODE,
		.frame = area + INSULA_MONITOR_SHARED,
		.directory = __pa(share->tables + ENTRIES),
		.deadline = U64_MAX,
		.virtual_vector = 1,
	};
}

static void share_fill_words(const struct insula_monitor_sharing *share,
			     const struct insula_entry *entry)
{
	struct insula_monitor_share *words = share_words(share);
	u64 period = (u64)insula_processor_tsc_khz() * PERIOD_MS;

	WRITE_ONCE(words->entry, entry->address);
	WRITE_ONCE(words->page_table, entry->page_table);
	WRITE_ONCE(words->argument, entry->argument);
	WRITE_ONCE(words->page, SHARE_PAGE);
	WRITE_ONCE(words->period, period);
	WRITE_ONCE(words->budget, period / 100 * share->percent);
	WRITE_ONCE(words->entered, 0);
	WRITE_ONCE(words->fault, 0);
}

/* Whether the monitor has ended the LWK, or not begun. */
static bool share_wait_ended(const struct insula_monitor_sharing *share)
{
	unsigned long deadline = jiffies + ANSWER_TIMEOUT;

	while (smp_load_acquire(&share_words(share)->runs)) { /* before its memory is reused */
		if (time_after(jiffies, deadline))
			return false;
		usleep_range(POLL_US, 2 * POLL_US);
	}
	return true;
}

static void share_close(struct insula_monitor_sharing *share)
{
	WRITE_ONCE(share->open, false);
	WRITE_ONCE(share_words(share)->open, 0);
	smp_mb(); /* either it is not begun any more, or we see that it runs */
	if (READ_ONCE(share_words(share)->runs))
		share_request(share);
}

static int share_stop(struct insula_monitor_sharing *share)
{
	share_close(share);
	return share_wait_ended(share) ? 0 : -ETIMEDOUT;
}

static int share_start(struct insula_monitor_sharing *share, const struct insula_entry *entry,
		       u64 *tsc)
{
	struct insula_monitor_share *words = share_words(share);
	unsigned long deadline = jiffies + ANSWER_TIMEOUT;

	if (share->orphaned || share->gone || !READ_ONCE(share->core.area->running))
		return -EHOSTDOWN;
	share_build_tables(share, entry->page_table);
	share_fill_page(share);
	share_fill_words(share, entry);
	WRITE_ONCE(share->open, true);
	smp_store_release(&words->open, ++shares.starts); /* all above is for its entry */
	share_request(share);
	while (!smp_load_acquire(&words->entered)) { /* before its value */
		if (time_after(jiffies, deadline)) {
			share_stop(share);
			return -ETIMEDOUT;
		}
		usleep_range(POLL_US, 2 * POLL_US);
	}
	*tsc = READ_ONCE(words->entered);
	return 0;
}

int insula_monitor_share_start(u32 apic_id, const struct insula_entry *entry, u64 *tsc)
{
	struct insula_monitor_sharing *share;
	int err;

	mutex_lock(&shares.lock);
	share = share_find(apic_id);
	err = share ? share_start(share, entry, tsc) : -ENODEV;
	mutex_unlock(&shares.lock);
	return err;
}

void insula_monitor_share_close(u32 apic_id)
{
	struct insula_monitor_sharing *share = share_find(apic_id);

	if (share)
		share_close(share);
}

/* An orphan's core has nobody else who would reset it. */
int insula_monitor_share_stop(u32 apic_id)
{
	bool orphaned = false;
	struct insula_monitor_sharing *share;
	int err = 0;

	mutex_lock(&shares.lock);
	share = share_find(apic_id);
	if (share) {
		err = share_stop(share);
		orphaned = share->orphaned && !share->gone;
	}
	mutex_unlock(&shares.lock);
	if (orphaned)
		err = insula_start_park(apic_id & ~INSULA_MONITOR_SHARE_ID);
	return err;
}

void insula_monitor_share_ring(u32 apic_id)
{
	struct insula_monitor_sharing *share = share_find(apic_id);

	if (share && READ_ONCE(share->open))
		share_request(share);
}

void insula_monitor_share_interrupt(u32 apic_id, u8 vector)
{
	struct insula_monitor_sharing *share = share_find(apic_id);

	if (!share)
		return;
	set_bit(vector, (unsigned long *)share_page(share)->pending);
	insula_monitor_share_ring(apic_id);
}

bool insula_monitor_share_orphan(u32 apic_id)
{
	struct insula_monitor_sharing *share = share_find(apic_id);

	if (!share || !READ_ONCE(share->open) || !READ_ONCE(share_words(share)->runs))
		return false;
	insula_monitor_core_request(&share->core, INSULA_MONITOR_REQUEST_STOP);
	return true;
}

static bool share_wait_orphan(struct insula_monitor_sharing *share)
{
	unsigned long deadline = jiffies + ANSWER_TIMEOUT;

	while (READ_ONCE(share->core.area->running)) {
		if (time_after(jiffies, deadline))
			return false;
		usleep_range(POLL_US, 2 * POLL_US);
	}
	WRITE_ONCE(share->orphaned, true);
	return true;
}

bool insula_monitor_share_is_orphan(u32 apic_id)
{
	struct insula_monitor_sharing *share = share_find(apic_id);

	return share && READ_ONCE(share->orphaned);
}

bool insula_monitor_share_wait_orphan(u32 apic_id)
{
	bool waited = false;

	if (!share_find(apic_id))
		return false;
	mutex_lock(&shares.lock);
	if (insula_monitor_share_orphan(apic_id))
		waited = share_wait_orphan(share_find(apic_id));
	mutex_unlock(&shares.lock);
	return waited;
}

void insula_monitor_share_parked(u32 apic_id)
{
	struct insula_monitor_sharing *share;

	if (!share_find(apic_id))
		return;
	mutex_lock(&shares.lock);
	share = share_find(apic_id);
	if (share) {
		WRITE_ONCE(share->open, false);
		share->gone = true;
		WRITE_ONCE(share_words(share)->runs, 0);
	}
	mutex_unlock(&shares.lock);
}

bool insula_monitor_share_uses(const struct file *memory)
{
	bool used = false;
	u32 i;

	mutex_lock(&shares.lock);
	for (i = 0; i < SHARES_MAX; i++)
		used |= shares.share[i].used && !shares.share[i].gone &&
			shares.share[i].memory == memory;
	mutex_unlock(&shares.lock);
	return used;
}
