// SPDX-License-Identifier: GPL-2.0-only
/*
 * Driver for tests of isolation: does in a node's kernel what a node must not, once, when it is
 * loaded. It fails to load if it survives that.
 *
 *	attack=memory subject=ADDRESS value=WORD	write to physical memory
 *	attack=read subject=ADDRESS			read from it
 *	attack=port subject=PORT value=NUMBER		write a byte, or 16 bits, to an I/O port
 *	attack=msr subject=REGISTER value=WORD		write to a model-specific register
 *	attack=ipi subject=APIC_ID value=COMMAND	send an interrupt to a core
 *	attack=instruction subject=N			one of the instructions of virtualization
 *	attack=fault					an exception without handlers
 *	attack=late					write to memory that it gives back, forever
 *	attack=random seed=N				some of these, 1000 times, by chance
 */
#include <linux/delay.h>
#include <linux/io.h>
#include <linux/ioport.h>
#include <linux/irqflags.h>
#include <linux/jiffies.h>
#include <linux/memory.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/prandom.h>
#include <linux/string.h>
#include <linux/timekeeping.h>

#include <asm/apicdef.h>
#include <asm/desc.h>

#include "compat/msr.h"

#define RANDOM_ATTACKS	1000
/* The interrupt command register in x2APIC mode. */
#define COMMAND_MSR	(APIC_BASE_MSR + (APIC_ICR >> 4))
/* Physical addresses that a machine may have. */
#define ADDRESS_BITS	40
/* Longest time until memory is removed, and then of the attack. */
#define LATE_TIMEOUT	(600 * HZ)
/* Time without interrupts: far below what counts as a hang. */
#define LATE_BURST_NS	(2ULL * NSEC_PER_SEC)

static char *attack = "";
module_param(attack, charp, 0);
static ulong subject;
module_param(subject, ulong, 0);
static ulong value;
module_param(value, ulong, 0);
static ulong seed;
module_param(seed, ulong, 0);

/* RAM that is the node's cannot be mapped so: such an address is left alone. */
static void hostile_access(u64 address, u32 word, bool write)
{
	void __iomem *at = ioremap_cache(address & PAGE_MASK, PAGE_SIZE);

	if (!at)
		return;
	at += address & ~PAGE_MASK & ~3UL;
	if (write)
		writel(word, at);
	else
		readl(at);
	iounmap(at - (address & ~PAGE_MASK & ~3UL));
}

static void hostile_write_port(u16 port, u16 number)
{
	if (number > U8_MAX)
		outw(number, port);
	else
		outb(number, port);
}

/* Whatever mode the node's cores are in. */
static void hostile_interrupt(u32 apic_id, u32 command)
{
	void __iomem *page;
	u64 mode;

	rdmsrq(MSR_IA32_APICBASE, mode);
	if (mode & X2APIC_ENABLE) {
		wrmsrq_safe(COMMAND_MSR, (u64)apic_id << 32 | command);
		return;
	}
	page = ioremap(APIC_DEFAULT_PHYS_BASE, PAGE_SIZE);
	if (!page)
		return;
	writel(apic_id << 24, page + APIC_ICR2);
	writel(command, page + APIC_ICR);
	iounmap(page);
}

static void hostile_instruct(unsigned int number)
{
	switch (number) {
	case 0:
		asm volatile("vmrun" : : "a"(0UL) : "memory");
		break;
	case 1:
		asm volatile("vmload" : : "a"(0UL) : "memory");
		break;
	case 2:
		asm volatile("vmsave" : : "a"(0UL) : "memory");
		break;
	case 3:
		asm volatile("vmmcall" : : "a"(0UL) : "memory");
		break;
	case 4:
		asm volatile("clgi" : : : "memory");
		break;
	case 5:
		asm volatile("stgi" : : : "memory");
		break;
	case 8:
		asm volatile("vmcall" : : "a"(0UL) : "memory");
		break;
	default:
		asm volatile("invlpga" : : "a"(0UL), "c"(0));
		break;
	}
}

/* A triple fault: neither the exception nor those of its delivery have a handler. */
static void hostile_fault(void)
{
	const struct desc_ptr none = {};

	local_irq_disable();
	load_idt(&none);
	asm volatile("int3");
}

/* Frame of a block of memory that has been taken offline, or 0. */
static unsigned long hostile_lost;

static int hostile_memory_notify(struct notifier_block *block, unsigned long action, void *data)
{
	const struct memory_notify *memory = data;

	if (action == MEM_OFFLINE)
		WRITE_ONCE(hostile_lost, memory->start_pfn);
	return NOTIFY_OK;
}

static struct notifier_block hostile_notifier = {
	.notifier_call = hostile_memory_notify,
};

/* Whether a frame that was lost is no RAM of this kernel any more, which is the last step. */
static bool hostile_is_removed(unsigned long frame)
{
	return frame && region_intersects(PFN_PHYS(frame), PAGE_SIZE, IORESOURCE_SYSTEM_RAM,
					  IORES_DESC_NONE) == REGION_DISJOINT;
}

/* Map the block as soon as it is removed: the base takes it away next. */
static void __iomem *hostile_map_lost(unsigned long deadline)
{
	while (!READ_ONCE(hostile_lost) && time_before(jiffies, deadline))
		msleep(20);
	while (!hostile_is_removed(READ_ONCE(hostile_lost)) && time_before(jiffies, deadline))
		cond_resched();
	return ioremap_cache(PFN_PHYS(READ_ONCE(hostile_lost)), PAGE_SIZE);
}

/*
 * Write without interrupts, so that the core does not leave for a monitor by itself, which would
 * make an emulated one forget its translations.
 */
static void hostile_write_burst(void __iomem *at)
{
	u64 end = ktime_get_raw_fast_ns() + LATE_BURST_NS;
	u32 word = 0;

	local_irq_disable();
	while (ktime_get_raw_fast_ns() < end)
		writel(word++, at);
	local_irq_enable();
}

/* By one mapping, whose translation the core remembers: nothing here makes it forget. */
static void hostile_write_late(void)
{
	unsigned long deadline = jiffies + LATE_TIMEOUT;
	void __iomem *at;

	if (register_memory_notifier(&hostile_notifier))
		return;
	pr_info("insula_hostile: waits for memory to be removed\n");
	at = hostile_map_lost(deadline);
	while (at && time_before(jiffies, deadline)) {
		hostile_write_burst(at);
		cond_resched();
	}
	if (at)
		iounmap(at);
	unregister_memory_notifier(&hostile_notifier);
}

static void hostile_random(void)
{
	struct rnd_state state;
	unsigned int i;
	u64 number;

	prandom_seed_state(&state, seed);
	for (i = 0; i < RANDOM_ATTACKS; i++) {
		number = (u64)prandom_u32_state(&state) << 32 | prandom_u32_state(&state);
		switch (prandom_u32_state(&state) % 5) {
		case 0:
			hostile_access(number & (BIT_ULL(ADDRESS_BITS) - 1), number, number & 1);
			break;
		case 1:
			outb(number >> 32, number & 0xffff);
			break;
		case 2:
			/* The three ranges that processors have. */
			wrmsrq_safe((number & 0x1fff) | ((number >> 13) % 3 ?
				    0xc0000000 | ((number >> 16) & 0x10000) : 0), number >> 32);
			break;
		case 3:
			wrmsrq_safe(COMMAND_MSR, (number & 0xf) << 32 | (number >> 32 & 0xcffff));
			break;
		default:
			if (!(number & 0xff))
				hostile_instruct(number >> 32 & 7);
			break;
		}
	}
}

static int __init hostile_init(void)
{
	if (!strcmp(attack, "memory"))
		hostile_access(subject, value, true);
	else if (!strcmp(attack, "read"))
		hostile_access(subject, 0, false);
	else if (!strcmp(attack, "port"))
		hostile_write_port(subject, value);
	else if (!strcmp(attack, "msr"))
		wrmsrq_safe(subject, value);
	else if (!strcmp(attack, "ipi"))
		hostile_interrupt(subject, value);
	else if (!strcmp(attack, "instruction"))
		hostile_instruct(subject);
	else if (!strcmp(attack, "fault"))
		hostile_fault();
	else if (!strcmp(attack, "late"))
		hostile_write_late();
	else if (!strcmp(attack, "random"))
		hostile_random();
	else
		return -EINVAL;
	pr_info("insula_hostile: survived %s\n", attack);
	return -EAGAIN;
}

module_init(hostile_init);

MODULE_DESCRIPTION("Attacks from a node's kernel, for tests");
MODULE_LICENSE("GPL");
