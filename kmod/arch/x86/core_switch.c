// SPDX-License-Identifier: GPL-2.0-only
/*
 * Preparation of a core to be switched between this kernel and another one (core_switch_code.S),
 * and the parts of a switch that need no assembly.
 *
 * Both pages lie in the memory of this module, which is in the last GiB of the address space: the
 * other kernel leaves that free for them.
 */
#include "insula_module.h"

#include <linux/compiler.h>
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/vmalloc.h>

#include <asm/cpufeature.h>
#include <asm/desc.h>
#include <asm/fpu/xstate.h>
#include <asm/io.h>
#include <asm/special_insns.h>

#include "arch/x86/core_switch.h"
#include "arch/x86/processor.h"
#include "arch/x86/start.h"
#include "compat/cpuid.h"
#include "compat/msr.h"
#include "insula_shared_core.h"

/* Control register 4, by number, as older kernels lack some names. */
#define CR4_TSD			BIT_ULL(2)
#define CR4_PGE			BIT_ULL(7)
#define CR4_LA57		BIT_ULL(12)
#define CR4_VMXE		BIT_ULL(13)
#define CR4_OSXSAVE		BIT_ULL(18)
#define CR4_CET			BIT_ULL(23)
#define CR4_LASS		BIT_ULL(27)
#define CR4_FRED		BIT_ULL(32)
/* Memory types as all kernels here have them: see program_mode.rs of bare/. */
#define MEMORY_TYPES		0x0407050600070106ULL
/* Below the root: two tables, and one of pages for each page that is mapped. */
#define TABLES_ORDER		2
#define ENTRIES			512
/* CPUID leaf of the extended state, whose name differs between kernels. */
#define XSTATE_LEAF		0xd
#define EXTENDED_ORDER		2	/* of an area of XSAVE */
#define MXCSR_OFFSET		24
#define CODE_DESCRIPTOR		0x00af9b000000ffffULL
#define DATA_DESCRIPTOR		0x00cf93000000ffffULL
#define DESCRIPTOR_BUSY		BIT_ULL(41)
#define GATE_INTERRUPT		0x8e00ULL

struct table_pointer {
	u16 limit;
	u64 base;
} __packed;

/* The page with the code of the switch. */
static const void *switch_code(void)
{
	return (const void *)((unsigned long)insula_switch_enter & PAGE_MASK);
}

static bool switch_in_last_gib(const void *page)
{
	return (u64)page >= -SZ_1G;
}

/* What of this kernel's setup keeps it from sharing cores, or NULL. */
static const char *switch_obstacle(void)
{
	u64 cr4 = native_read_cr4(), types;

	if (boot_cpu_has(X86_FEATURE_XENPV))
		return "this kernel is a paravirtualized guest";
	if (cr4 & CR4_FRED)
		return "interrupts are delivered by FRED: boot with fred=off";
	if (cr4 & CR4_LA57)
		return "page tables have five levels: boot with no5lvl";
	if (!(cr4 & CR4_OSXSAVE))
		return "the processor lacks XSAVE";
	if (!boot_cpu_has(X86_FEATURE_RDTSCP))
		return "the processor lacks RDTSCP";
	if (boot_cpu_has(X86_FEATURE_XFD))
		return "the processor has registers that are enabled for single tasks (AMX)";
	if (cpuid_ebx(XSTATE_LEAF) > PAGE_SIZE << EXTENDED_ORDER)
		return "the processor's extended registers take more than 16 KiB";
	if (!switch_in_last_gib(switch_code()))
		return "modules are too low in the address space: boot without nokaslr";
	if (rdmsrq_safe(MSR_IA32_CR_PAT, &types) || types != MEMORY_TYPES)
		return "this kernel uses other memory types: boot without nopat";
	return NULL;
}

int insula_core_switch_supported(void)
{
	const char *obstacle = switch_obstacle();

	if (!obstacle)
		return 0;
	pr_err("cores cannot be shared: %s\n", obstacle);
	return -EOPNOTSUPP;
}

static phys_addr_t switch_page_frame(const void *page)
{
	return PFN_PHYS(vmalloc_to_pfn(page));
}

static void switch_put_pointer(void *at, u16 limit, const void *base)
{
	*(struct table_pointer *)at = (struct table_pointer) { .limit = limit, .base = (u64)base };
}

static void switch_fill_idt(u64 *idt, u64 selector)
{
	unsigned int i;

	for (i = 0; i < SWITCH_EXCEPTIONS; i++) {
		u64 entry = (u64)insula_switch_exceptions + 16 * i;

		idt[2 * i] = (entry & 0xffff) | selector << 16 | GATE_INTERRUPT << 32 |
			     (entry >> 16 & 0xffff) << 48;
		idt[2 * i + 1] = entry >> 32;
	}
}

/* Fill in what stays, on the core or another one: its TSS does not move. */
static void switch_fill_page(void *page, u32 cpu)
{
	const u64 *own = (const u64 *)get_cpu_gdt_ro(cpu);
	u64 *gdt = page + SWITCH_GDT;
	unsigned int tss = SWITCH_BASE_TSS / sizeof(*gdt);

	gdt[SWITCH_NODE_CS / sizeof(*gdt)] = CODE_DESCRIPTOR;
	gdt[SWITCH_BASE_CS / sizeof(*gdt)] = CODE_DESCRIPTOR;
	gdt[3] = DATA_DESCRIPTOR;
	gdt[tss] = own[GDT_ENTRY_TSS] & ~DESCRIPTOR_BUSY;
	gdt[tss + 1] = own[GDT_ENTRY_TSS + 1];
	switch_put_pointer(page + SWITCH_GDTR, SWITCH_GDT_ENTRIES * sizeof(*gdt) - 1, gdt);
	switch_fill_idt(page + SWITCH_BASE_IDT, SWITCH_BASE_CS);
	switch_fill_idt(page + SWITCH_NODE_IDT, SWITCH_NODE_CS);
	switch_put_pointer(page + SWITCH_BASE_IDTR, 16 * SWITCH_EXCEPTIONS - 1,
			   page + SWITCH_BASE_IDT);
	switch_put_pointer(page + SWITCH_NODE_IDTR, 16 * SWITCH_EXCEPTIONS - 1,
			   page + SWITCH_NODE_IDT);
}

static u64 *switch_table(struct insula_core_switch *core_switch, unsigned int number)
{
	return core_switch->tables + number * ENTRIES;
}

/* Map a page below the directory; `number`: of a free table, used if none is there yet. */
static void switch_map(struct insula_core_switch *core_switch, const void *page,
		       unsigned int number, u64 flags)
{
	u64 *entry = &switch_table(core_switch, 1)[pmd_index((unsigned long)page)];
	u64 *table = switch_table(core_switch, number);

	if (*entry)
		table = phys_to_virt(*entry & PAGE_MASK);
	else
		*entry = __pa(table) | _PAGE_PRESENT | _PAGE_RW;
	table[pte_index((unsigned long)page)] = switch_page_frame(page) | _PAGE_PRESENT | flags;
}

/* Map both pages below the last entry of the root, in the node's memory. */
static void switch_build_tables(struct insula_core_switch *core_switch, u64 page_table)
{
	u64 *upper = switch_table(core_switch, 0), *directory = switch_table(core_switch, 1);
	u64 *root = phys_to_virt(page_table);

	memset(core_switch->tables, 0, PAGE_SIZE << TABLES_ORDER);
	upper[ENTRIES - 1] = __pa(directory) | _PAGE_PRESENT | _PAGE_RW;
	switch_map(core_switch, switch_code(), 2, 0);
	switch_map(core_switch, core_switch->shared, 3, _PAGE_RW);
	root[ENTRIES - 1] = __pa(upper) | _PAGE_PRESENT | _PAGE_RW;
}

/* A register that stops all counters at once: with it they do not count what the node does. */
static bool switch_has_perf_control(void)
{
	return boot_cpu_has(X86_FEATURE_ARCH_PERFMON) && (cpuid_eax(0xa) & 0xff) >= 2;
}

int insula_core_switch_init(struct insula_core_switch *core_switch, void *page, u32 cpu)
{
	BUILD_BUG_ON(sizeof(struct insula_shared_core) > SWITCH_BASE);
	BUILD_BUG_ON(offsetof(struct insula_shared_core, abandon) != SHARED_ABANDON);
	BUILD_BUG_ON(offsetof(struct insula_shared_core, nmis) != SHARED_NMIS);
	BUILD_BUG_ON(offsetof(struct insula_shared_core, reason) != SHARED_REASON);
	BUILD_BUG_ON(INSULA_LEAVE_ENDED != SHARED_ENDED);
	BUILD_BUG_ON(SWITCH_BASE_TSS != GDT_ENTRY_TSS * 8 || SWITCH_BASE_CS != __KERNEL_CS);
	/* As the code, which insula_core_switch_supported() has looked at. */
	if (WARN_ON(!switch_in_last_gib(page)))
		return -EOPNOTSUPP;
	*core_switch = (struct insula_core_switch) {
		.shared = page,
		.apic_id = insula_processor_apic_id(cpu),
		.base_extended = (void *)__get_free_pages(GFP_KERNEL | __GFP_ZERO, EXTENDED_ORDER),
		.node_extended = (void *)__get_free_pages(GFP_KERNEL | __GFP_ZERO, EXTENDED_ORDER),
		.tables = (u64 *)__get_free_pages(GFP_KERNEL | __GFP_ZERO, TABLES_ORDER),
	};
	if (!core_switch->base_extended || !core_switch->node_extended || !core_switch->tables) {
		insula_core_switch_exit(core_switch);
		return -ENOMEM;
	}
	memset(page, 0, PAGE_SIZE);
	switch_fill_page(page, cpu);
	return 0;
}

void insula_core_switch_exit(struct insula_core_switch *core_switch)
{
	free_pages((unsigned long)core_switch->base_extended, EXTENDED_ORDER);
	free_pages((unsigned long)core_switch->node_extended, EXTENDED_ORDER);
	free_pages((unsigned long)core_switch->tables, TABLES_ORDER);
}

void insula_core_switch_reset(struct insula_core_switch *core_switch,
			      const struct insula_entry *entry, u8 vector)
{
	switch_build_tables(core_switch, entry->page_table);
	memset(core_switch->node_extended, 0, PAGE_SIZE << EXTENDED_ORDER);
	*(u32 *)(core_switch->node_extended + MXCSR_OFFSET) = MXCSR_DEFAULT;
	memset((void *)core_switch->shared + SWITCH_FAULT, 0, 3 * sizeof(u64));
	*core_switch->shared = (struct insula_shared_core) {
		.magic = INSULA_SHARED_CORE_MAGIC,
		.revision = INSULA_SHARED_CORE_REVISION,
		.vector = vector,
		.leave = (u64)insula_switch_leave,
		.code = (u64)switch_code(),
		.code_frame = switch_page_frame(switch_code()),
		.frame = switch_page_frame(core_switch->shared),
		.directory = __pa(switch_table(core_switch, 1)),
		.armed = U64_MAX,
		.deadline = U64_MAX,
	};
	core_switch->entered = false;
	core_switch->own_nmis = 0;
}

/*
 * All user states, of this kernel in the middle of using them or of a process: kernel_fpu_begin()
 * may be in use already.
 */
static void switch_save_extended(void *area)
{
	asm volatile("xsave64 (%0)" : : "r" (area), "a" (-1), "d" (-1) : "memory");
}

static void switch_load_extended(void *area)
{
	asm volatile("xrstor64 (%0)" : : "r" (area), "a" (-1), "d" (-1) : "memory");
}

static void switch_enter(struct insula_core_switch *core_switch, const struct insula_entry *entry)
{
	void *page = core_switch->shared;
	u64 *node = page + SWITCH_NODE, *node_cr4 = &node[STATE_CR4 / sizeof(u64)];
	u64 cr4 = native_read_cr4();

	if (core_switch->entered) {
		/* KVM has VMX on as long as it has guests: it must not be switched off under it. */
		*node_cr4 = (*node_cr4 & ~CR4_VMXE) | (cr4 & CR4_VMXE);
		insula_switch_enter(page);
		return;
	}
	core_switch->entered = true;
	node[STATE_CR0 / sizeof(u64)] = read_cr0();
	node[STATE_CR3 / sizeof(u64)] = entry->page_table;
	*node_cr4 = cr4 & ~(CR4_TSD | CR4_PGE | CR4_CET | CR4_LASS);
	insula_switch_start(page, entry->address, entry->argument);
}

/*
 * A new one, and no INT instruction: that would leave NMIs unblocked in the first instructions of
 * Linux' entry, where another one overwrites the frame on its stack.
 */
bool insula_core_switch_deliver_nmi(struct insula_core_switch *core_switch)
{
	if (xchg(&core_switch->shared->nmis, 0) <= xchg(&core_switch->own_nmis, 0))
		return false;
	insula_start_nmi(core_switch->apic_id);
	return true;
}

/* Those that came were the more urgent the later: the last one ends first. */
void insula_core_switch_deliver(struct insula_core_switch *core_switch)
{
	struct insula_shared_core *shared = core_switch->shared;
	u64 taken;
	int i;

	insula_core_switch_deliver_nmi(core_switch);
	for (i = ARRAY_SIZE(shared->taken) - 1; i >= 0; i--) {
		taken = xchg(&shared->taken[i], 0);
		while (taken) {
			unsigned int bit = __fls(taken);

			taken &= ~BIT_ULL(bit);
			if (i || bit >= FIRST_EXTERNAL_VECTOR)
				insula_switch_interrupt(64 * i + bit);
		}
	}
}

void insula_core_switch_run(struct insula_core_switch *core_switch,
			    const struct insula_entry *entry)
{
	unsigned long fault_address = read_cr2(), breakpoints;
	bool has_perf = switch_has_perf_control();
	u64 perf = 0;

	get_debugreg(breakpoints, 7);
	set_debugreg(0, 7);
	if (has_perf) {
		rdmsrq(MSR_CORE_PERF_GLOBAL_CTRL, perf);
		wrmsrq(MSR_CORE_PERF_GLOBAL_CTRL, 0);
	}
	switch_save_extended(core_switch->base_extended);
	switch_load_extended(core_switch->node_extended);
	switch_enter(core_switch, entry);
	switch_save_extended(core_switch->node_extended);
	switch_load_extended(core_switch->base_extended);
	if (has_perf)
		wrmsrq(MSR_CORE_PERF_GLOBAL_CTRL, perf);
	set_debugreg(breakpoints, 7);
	native_write_cr2(fault_address);
}
