/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Trampoline: first instructions of a node's first core. start.c copies the code between
 * insula_trampoline and insula_trampoline_end to a page below 1 MiB; a start-up IPI starts the
 * core there in real mode, with CS pointing to the page (Intel SDM volume 3, 11.4.4). It enters
 * 64-bit mode in two steps, since CR3 has only 32 bits before that and the node's page table may
 * be anywhere:
 *
 *	16 bits	-> 32 bits, paging off
 *		-> 64 bits, page table below 4 GiB that maps this page alone
 *		-> page table of the node, and jump
 *
 * Without an entry address the core sets TRAMPOLINE_ENTERED and halts: so the base knows that it
 * no longer executes its former code. It stays parked here until it is started or returned to
 * the base. Hardware errors are broadcast to all cores as machine checks, and a core with
 * CR4.MCE clear, as after INIT, would shut the machine down (Intel SDM volume 3, 17.8): so a
 * parked core handles them, leaving recovery to the cores concerned. It also handles NMIs, and
 * returns from neither: parked cores share one stack, whose content is never read.
 *
 * The code is never executed at its link address: all references are relative to the page's
 * address, in EBX. It writes only the two words that report progress to the base. The page's
 * parameters may be changed once TRAMPOLINE_ENTERED is set: by then they are in registers.
 */
#include <linux/linkage.h>
#include <asm/msr-index.h>
#include <asm/processor-flags.h>
#include "trampoline.h"

	.section .rodata, "a"
	.balign 16

	.code16
SYM_DATA_START(insula_trampoline)
	cli
	cld
	xorl	%ebx, %ebx
	movw	%cs, %bx
	movw	%bx, %ds
	shll	$4, %ebx
	movl	TRAMPOLINE_ENTRY, %eax
	orl	TRAMPOLINE_ENTRY + 4, %eax
	jz	.Lpark
	lgdtl	TRAMPOLINE_GDTR
	movl	$(X86_CR0_PE | X86_CR0_ET), %eax
	movl	%eax, %cr0
	ljmpl	*TRAMPOLINE_TO32
.Lpark:
	movw	%cs, %ax
	movw	%ax, %ss
	movw	$(TRAMPOLINE_PARK_STACK & 0xffff), %sp
	lidtl	TRAMPOLINE_IDTR
	movl	TRAMPOLINE_PARK_CR4, %eax
	movl	%eax, %cr4
	/* A monitor leaves x2APIC mode on, and an INIT does so too; only disabled it leads back. */
	cmpl	$0, TRAMPOLINE_X2APIC
	jne	.Lparked
	movl	$MSR_IA32_APICBASE, %ecx
	rdmsr
	testl	$TRAMPOLINE_APICBASE_X2APIC, %eax
	jz	.Lparked
	andl	$~(TRAMPOLINE_APICBASE_X2APIC | MSR_IA32_APICBASE_ENABLE), %eax
	wrmsr
	orl	$MSR_IA32_APICBASE_ENABLE, %eax
	wrmsr
.Lparked:
	movl	$1, TRAMPOLINE_ENTERED
SYM_INNER_LABEL(insula_trampoline_parked, SYM_L_GLOBAL)
	movw	$(TRAMPOLINE_PARK_STACK & 0xffff), %sp
	hlt
	jmp	insula_trampoline_parked
	/* Clear MCIP: until then another machine check would shut the machine down. */
SYM_INNER_LABEL(insula_trampoline_checked, SYM_L_GLOBAL)
	movl	$MSR_IA32_MCG_STATUS, %ecx
	xorl	%eax, %eax
	xorl	%edx, %edx
	wrmsr
	jmp	insula_trampoline_parked

	.code32
SYM_INNER_LABEL(insula_trampoline_32, SYM_L_GLOBAL)
	movl	$TRAMPOLINE_DS, %eax
	movl	%eax, %ds
	movl	%eax, %es
	movl	%eax, %ss
	movl	%eax, %fs
	movl	%eax, %gs
	movl	$X86_CR4_PAE, %eax
	movl	%eax, %cr4
	movl	TRAMPOLINE_LOW_CR3(%ebx), %eax
	movl	%eax, %cr3
	movl	$MSR_EFER, %ecx
	movl	$EFER_LME, %eax
	xorl	%edx, %edx
	wrmsr
	movl	$(X86_CR0_PG | X86_CR0_PE | X86_CR0_ET), %eax
	movl	%eax, %cr0
	ljmpl	*TRAMPOLINE_TO64(%ebx)

	.code64
SYM_INNER_LABEL(insula_trampoline_64, SYM_L_GLOBAL)
	leaq	TRAMPOLINE_STACK(%rbx), %rsp
	movq	TRAMPOLINE_CR3(%rbx), %rax
	movq	%rax, %cr3
	movq	TRAMPOLINE_ENTRY(%rbx), %rdi
	movq	TRAMPOLINE_ARGUMENT(%rbx), %rsi
	rdtsc
	movl	%eax, TRAMPOLINE_TSC(%rbx)
	movl	%edx, TRAMPOLINE_TSC + 4(%rbx)
	movl	$1, TRAMPOLINE_ENTERED(%rbx)
	xorl	%ebp, %ebp
	jmpq	*%rdi
SYM_INNER_LABEL(insula_trampoline_end, SYM_L_GLOBAL)
SYM_DATA_END(insula_trampoline)
