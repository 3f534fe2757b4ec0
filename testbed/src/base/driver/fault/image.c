// SPDX-License-Identifier: GPL-2.0-only
/* Faults in the kernel's image and in a module: code, constants and tables. */
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/string.h>
#include <linux/vmalloc.h>

#include <asm/desc.h>
#include <asm/nops.h>
#include <asm/unistd.h>

#include "fault.h"

/* Never called while the kernel runs. */
#define UNUSED_FUNCTION	"kernel_halt"
/* Behind the start of the function, and what a tracer's call would replace there. */
#define UNUSED_OFFSET	9
#define ENDBR_SIZE	4
#define CALL_OPCODE	0xe8
#define CALL_SIZE	5
#define BREAKPOINT	0xcc
/* Reserved (Intel SDM volume 3, table 6-1). */
#define UNUSED_VECTOR	22

static struct exchange code, call, constants, gate, module_code, module_constants;

/* A constant of this module. */
static const u64 fault_constant = 17;

/* The page that an address of the image or of a module is in. */
static struct page *page_of(unsigned long at)
{
	if (at >= MODULES_VADDR && at < MODULES_END)
		return vmalloc_to_page((void *)at);
	return pfn_to_page(__pa_symbol(at) >> PAGE_SHIFT);
}

/*
 * Exchanges bytes within a page of the kernel, which it maps once more: where they are, they
 * cannot be written.
 */
static int exchange_swap(struct exchange *exchange)
{
	struct page *page = page_of(exchange->at);
	u8 *mapped = vmap(&page, 1, VM_MAP, PAGE_KERNEL);
	size_t i;

	if (!mapped)
		return -ENOMEM;
	for (i = 0; i < exchange->size; i++)
		swap(mapped[offset_in_page(exchange->at) + i], exchange->bytes[i]);
	vunmap(mapped);
	return 0;
}

int exchange_make(struct exchange *exchange, unsigned long at, const void *bytes, size_t size)
{
	exchange->at = at;
	exchange->size = size;
	memcpy(exchange->bytes, bytes, size);
	return exchange_swap(exchange);
}

void exchange_undo(struct exchange *exchange)
{
	exchange_swap(exchange);
}

static int code_inject(void)
{
	unsigned long at = lookup(UNUSED_FUNCTION);
	u8 breakpoint = BREAKPOINT;

	return at ? exchange_make(&code, at + UNUSED_OFFSET, &breakpoint, 1) : -ENOENT;
}

static void code_undo(void)
{
	exchange_undo(&code);
}

static int call_inject(void)
{
	static const u8 untraced[CALL_SIZE] = { BYTES_NOP5 };
	unsigned long at = lookup(UNUSED_FUNCTION);
	u8 bytes[CALL_SIZE] = { CALL_OPCODE };
	s32 distance;

	if (!at)
		return -ENOENT;
	if (memcmp((void *)at, untraced, sizeof(untraced)))
		at += ENDBR_SIZE;
	distance = (unsigned long)fault_target - (at + CALL_SIZE);
	memcpy(bytes + 1, &distance, sizeof(distance));
	return exchange_make(&call, at, bytes, sizeof(bytes));
}

static void call_undo(void)
{
	exchange_undo(&call);
}

static int constants_inject(void)
{
	unsigned long table = lookup("sys_call_table");
	unsigned long target = (unsigned long)fault_target;

	if (!table)
		return -ENOENT;
	table += __NR_vserver * sizeof(target);
	return exchange_make(&constants, table, &target, sizeof(target));
}

static void constants_undo(void)
{
	exchange_undo(&constants);
}

static int gate_inject(void)
{
	unsigned long table = lookup("idt_table");
	unsigned long target = (unsigned long)fault_target;
	gate_desc bytes;

	if (!table)
		return -ENOENT;
	table += UNUSED_VECTOR * sizeof(bytes);
	memcpy(&bytes, (void *)table, sizeof(bytes));
	bytes.offset_low = target;
	bytes.offset_middle = target >> 16;
	bytes.offset_high = target >> 32;
	return exchange_make(&gate, table, &bytes, sizeof(bytes));
}

static void gate_undo(void)
{
	exchange_undo(&gate);
}

static int module_code_inject(void)
{
	unsigned long at = (unsigned long)fault_target;
	u8 breakpoint = BREAKPOINT;

	/* For objtool, which does not expect an address within a function. */
	OPTIMIZER_HIDE_VAR(at);
	return exchange_make(&module_code, at + UNUSED_OFFSET, &breakpoint, 1);
}

static void module_code_undo(void)
{
	exchange_undo(&module_code);
}

static int module_constants_inject(void)
{
	u64 other = ~fault_constant;

	return exchange_make(&module_constants, (unsigned long)&fault_constant, &other,
			     sizeof(other));
}

static void module_constants_undo(void)
{
	exchange_undo(&module_constants);
}

const struct fault image_faults[] = {
	{ "code", code_inject, code_undo },
	{ "call", call_inject, call_undo },
	{ "constants", constants_inject, constants_undo },
	{ "gate", gate_inject, gate_undo },
	{ "module-code", module_code_inject, module_code_undo },
	{ "module-constants", module_constants_inject, module_constants_undo },
	{ }
};
