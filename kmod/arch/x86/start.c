// SPDX-License-Identifier: GPL-2.0-only
/*
 * Starting and resetting of cores taken from the base: INIT, then a start-up IPI to the
 * trampoline page (Intel SDM volume 3, 9.4.4).
 */
#include "insula_module.h"

#include <linux/delay.h>
#include <linux/gfp.h>
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/smp.h>

#include <asm/apic.h>
#include <asm/cpufeature.h>
#include <asm/desc_defs.h>
#include <asm/pgtable.h>
#include <asm/trapnr.h>

#include "arch/x86/shared_core.h"
#include "arch/x86/start.h"
#include "arch/x86/trampoline.h"
#include "compat/compat.h"
#include "mem/lowmem.h"
#include "node/monitor_share.h"

/* Start-up vectors from here on are not RAM (0xA0000: VGA memory). */
#define START_VECTOR_BAD_FIRST	0xa0
/* Longest time from the start-up IPI to the core's first instruction. */
#define START_TIMEOUT_US	4000000
#define START_POLL_US		20
/* Intel's INIT-to-SIPI distance; newer cores need none. */
#define INIT_DELAY_US		10000
/* Limit of waits for the ICR's delivery status, which clears at once on real APICs. */
#define ICR_IDLE_SPINS		100000

/* Flat segments of 4 GiB: null, 32-bit code, 64-bit code, data. */
static const u64 flat_gdt[] = {
	0,
	0x00cf9b000000ffffULL,
	0x00af9b000000ffffULL,
	0x00cf93000000ffffULL,
};

static struct {
	struct mutex lock;	/* one core at a time uses the page's parameters */
	phys_addr_t page;
	void *code;
	unsigned long tables;	/* PML4, PDPT and PD below 4 GiB */
	bool forbidden;		/* final: no core is started any more */
} start = {
	.lock = __MUTEX_INITIALIZER(start.lock),
};

#define START_TABLES_ORDER	2

static void start_put32(unsigned int offset, u32 value)
{
	WRITE_ONCE(*(u32 *)(start.code + offset), value);
}

static void start_put64(unsigned int offset, u64 value)
{
	WRITE_ONCE(*(u64 *)(start.code + offset), value);
}

/* Store a far pointer to `label` in the page. */
static void start_put_far(unsigned int offset, u16 selector, const char *label)
{
	start_put32(offset, start.page + (label - insula_trampoline));
	start_put32(offset + 4, selector);
}

/* Set the handler of an exception of parked cores, in real mode. */
static void start_put_vector(unsigned int vector, const char *handler)
{
	unsigned int at = TRAMPOLINE_VECTORS + 4 * vector;

	start_put32(at, start.page << 12 | (handler - insula_trampoline));
}

/* Enable machine checks only if the cores support them. */
static void start_fill_parking(void)
{
	bool checked = boot_cpu_has(X86_FEATURE_MCE) && boot_cpu_has(X86_FEATURE_MCA);

	start_put_vector(X86_TRAP_NMI, insula_trampoline_parked);
	start_put_vector(X86_TRAP_MC, insula_trampoline_checked);
	put_unaligned((u16)(4 * TRAMPOLINE_VECTORS_COUNT - 1),
		      (u16 *)(start.code + TRAMPOLINE_IDTR));
	put_unaligned((u32)(start.page + TRAMPOLINE_VECTORS),
		      (u32 *)(start.code + TRAMPOLINE_IDTR + 2));
	start_put32(TRAMPOLINE_PARK_CR4, checked ? X86_CR4_MCE : 0);
	start_put32(TRAMPOLINE_X2APIC, x2apic_mode);
}

/* Map the first 2 MiB one to one: enough for the page. */
static int start_build_tables(void)
{
	u64 *pml4, *pdpt, *pd;

	start.tables = __get_free_pages(GFP_KERNEL | __GFP_DMA32 | __GFP_ZERO,
					START_TABLES_ORDER);
	if (!start.tables)
		return -ENOMEM;
	pml4 = (u64 *)start.tables;
	pdpt = (u64 *)(start.tables + PAGE_SIZE);
	pd = (u64 *)(start.tables + 2 * PAGE_SIZE);
	pml4[0] = __pa(pdpt) | _PAGE_PRESENT | _PAGE_RW;
	pdpt[0] = __pa(pd) | _PAGE_PRESENT | _PAGE_RW;
	pd[0] = _PAGE_PRESENT | _PAGE_RW | _PAGE_PSE;
	return 0;
}

static void start_fill_page(void)
{
	memcpy(start.code, insula_trampoline, insula_trampoline_end - insula_trampoline);
	memcpy(start.code + TRAMPOLINE_GDT, flat_gdt, sizeof(flat_gdt));
	put_unaligned((u16)(sizeof(flat_gdt) - 1), (u16 *)(start.code + TRAMPOLINE_GDTR));
	put_unaligned((u32)(start.page + TRAMPOLINE_GDT),
		      (u32 *)(start.code + TRAMPOLINE_GDTR + 2));
	start_put_far(TRAMPOLINE_TO32, TRAMPOLINE_CS32, insula_trampoline_32);
	start_put_far(TRAMPOLINE_TO64, TRAMPOLINE_CS64, insula_trampoline_64);
	start_put32(TRAMPOLINE_LOW_CR3, __pa(start.tables));
	start_fill_parking();
}

int insula_start_init(void)
{
	int err;

	BUILD_BUG_ON(TRAMPOLINE_GDT + sizeof(flat_gdt) > TRAMPOLINE_GDTR);
	BUILD_BUG_ON(X86_TRAP_MC >= TRAMPOLINE_VECTORS_COUNT);
	err = insula_lowmem_alloc(PAGE_SIZE, 0, START_VECTOR_BAD_FIRST << PAGE_SHIFT,
				  INSULA_LOWMEM_FROM_TOP, &start.page);
	if (err) {
		pr_err("no page of RAM below 640 KiB is free to start cores in\n");
		return err;
	}
	start.code = phys_to_virt(start.page);
	err = start_build_tables();
	if (err) {
		insula_lowmem_free(start.page, PAGE_SIZE);
		return err;
	}
	start_fill_page();
	return 0;
}

void insula_start_exit(void)
{
	insula_lowmem_free(start.page, PAGE_SIZE);
	free_pages(start.tables, START_TABLES_ORDER);
}

phys_addr_t insula_start_trampoline(void)
{
	return start.page;
}

/* An xAPIC sends one IPI at a time; in x2APIC mode there is nothing to wait for. */
static void start_wait_icr(void)
{
	int spins;

	for (spins = 0; !x2apic_mode && spins < ICR_IDLE_SPINS; spins++) {
		if (!(apic->icr_read() & APIC_ICR_BUSY))
			break;
		cpu_relax();
	}
}

/*
 * Send an IPI and wait until it is sent. Earlier writes are visible to the interrupted core: a
 * write to an xAPIC, which is uncached, is ordered after them; writing the MSR of an x2APIC is
 * not (Intel SDM volume 3, 11.12.3), and not every barrier of the kernel orders it.
 */
static void start_send(u32 icr, u32 apic_id)
{
	unsigned long flags;

	local_irq_save(flags);
	start_wait_icr();
	if (x2apic_mode)
		asm volatile("mfence; lfence" : : : "memory");
	apic->icr_write(icr, apic_id);
	start_wait_icr();
	local_irq_restore(flags);
}

u32 insula_start_save_destination(void)
{
	if (x2apic_mode)
		return 0;
	start_wait_icr();
	return apic->read(APIC_ICR2);
}

void insula_start_restore_destination(u32 destination)
{
	if (x2apic_mode)
		return;
	start_wait_icr();
	apic->write(APIC_ICR2, destination);
}

static void start_send_init(u32 apic_id)
{
	start_send(APIC_DM_INIT | APIC_INT_LEVELTRIG | APIC_INT_ASSERT, apic_id);
}

void insula_start_reset(u32 apic_id)
{
	struct insula_shared_core_state *shared = insula_shared_core_find(apic_id);

	if (apic_id & INSULA_MONITOR_SHARE_ID)
		insula_monitor_share_close(apic_id);
	else if (shared)
		insula_shared_core_close(shared);
	else if (READ_ONCE(start.forbidden) || !insula_monitor_share_orphan(apic_id))
		start_send_init(apic_id);
}

void insula_start_interrupt(u32 apic_id, u8 vector)
{
	start_send(APIC_DM_FIXED | vector, apic_id);
}

void insula_start_nmi(u32 apic_id)
{
	start_send(APIC_DM_NMI, apic_id);
}

static bool start_entered(void)
{
	return READ_ONCE(*(u32 *)(start.code + TRAMPOLINE_ENTERED));
}

void insula_start_forbid(void)
{
	WRITE_ONCE(start.forbidden, true);
}

/* After insula_start_forbid() and a grace period only IPIs to park cores are sent. */
static bool start_send_sipi(u32 apic_id, bool park)
{
	bool may;

	rcu_read_lock();
	may = park || !READ_ONCE(start.forbidden);
	if (may)
		start_send(APIC_DM_STARTUP | (start.page >> PAGE_SHIFT), apic_id);
	rcu_read_unlock();
	return may;
}

/*
 * Several IPIs: Intel recommends a second one, and a core that leaves a monitor's VMX operation for
 * its INIT loses the first. One that took an earlier one ignores the others.
 */
static bool start_kick(u32 apic_id, bool park)
{
	static const int limits_us[] = {
		START_TIMEOUT_US / 400, START_TIMEOUT_US / 40, START_TIMEOUT_US / 2,
		START_TIMEOUT_US / 2,
	};
	int tries, waited_us;

	lockdep_assert_held(&start.lock);
	for (tries = 0; tries < ARRAY_SIZE(limits_us); tries++) {
		if (!start_send_sipi(apic_id, park))
			return false;
		for (waited_us = 0; waited_us < limits_us[tries]; waited_us += START_POLL_US) {
			if (start_entered())
				return true;
			/* Mostly decided within microseconds: spin first, then sleep. */
			if (waited_us < 50 * START_POLL_US)
				udelay(START_POLL_US);
			else
				usleep_range(START_POLL_US, 2 * START_POLL_US);
		}
	}
	return false;
}

/* Whatever runs there. */
static int start_park(u32 apic_id)
{
	int err;

	mutex_lock(&start.lock);
	start_put64(TRAMPOLINE_ENTRY, 0);
	start_put32(TRAMPOLINE_ENTERED, 0);
	smp_wmb(); /* the core must see both */

	start_send_init(apic_id);
	err = start_kick(apic_id, true) ? 0 : -ETIMEDOUT;
	if (err)
		start_send_init(apic_id);
	mutex_unlock(&start.lock);
	return err;
}

int insula_start_park(u32 apic_id)
{
	struct insula_shared_core_state *shared = insula_shared_core_find(apic_id);
	int err;

	if (apic_id & INSULA_MONITOR_SHARE_ID)
		return insula_monitor_share_stop(apic_id);
	if (shared)
		return insula_shared_core_stop(shared);
	if (!READ_ONCE(start.forbidden) && insula_monitor_share_wait_orphan(apic_id))
		return 0;
	err = start_park(apic_id);
	if (!err)
		insula_monitor_share_parked(apic_id);
	return err;
}

bool insula_start_park_all(const u32 *apic_ids, u32 count)
{
	bool parked = true;
	u32 i;

	for (i = 0; i < count; i++)
		insula_start_reset(apic_ids[i]);
	for (i = 0; i < count; i++)
		if (insula_start_park(apic_ids[i]))
			parked = false;
	return parked;
}

int insula_start_core(u32 apic_id, const struct insula_entry *entry, u64 *tsc)
{
	struct insula_shared_core_state *shared = insula_shared_core_find(apic_id);
	int err = 0;

	if (READ_ONCE(start.forbidden))
		return -ESHUTDOWN;
	if (apic_id & INSULA_MONITOR_SHARE_ID)
		return insula_monitor_share_start(apic_id, entry, tsc);
	if (shared)
		return insula_shared_core_start(shared, entry, tsc);
	mutex_lock(&start.lock);
	start_put64(TRAMPOLINE_CR3, entry->page_table);
	start_put64(TRAMPOLINE_ENTRY, entry->address);
	start_put64(TRAMPOLINE_ARGUMENT, entry->argument);
	start_put32(TRAMPOLINE_ENTERED, 0);
	smp_wmb(); /* the core must see them all */

	start_send_init(apic_id);
	if (start_kick(apic_id, false)) {
		smp_rmb(); /* the stamp was written before the flag */
		*tsc = READ_ONCE(*(u64 *)(start.code + TRAMPOLINE_TSC));
	} else {
		start_send_init(apic_id);
		usleep_range(INIT_DELAY_US, 2 * INIT_DELAY_US);
		err = READ_ONCE(start.forbidden) ? -ESHUTDOWN : -ETIMEDOUT;
	}
	mutex_unlock(&start.lock);
	return err;
}
