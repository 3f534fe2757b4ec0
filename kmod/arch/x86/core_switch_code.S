/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Switch of a core between this kernel (the base) and another one that shares it (the node's):
 * protocol in insula_shared_core.h.
 *
 * The code has a page of its own, which both kernels map at the same address, as they do the page
 * of core_switch.h, in RBX. Interrupts are off. Non-maskable interrupts (NMIs) are not: from the
 * first register that is the other kernel's to the last one, GDT, IDT and stack are those in the
 * page, which both page tables map. There an NMI is counted, and any exception is taken for one of
 * the node's kernel, which is then left for good: by then all registers of the base are stored.
 *
 * Each GDT is only loaded together with an IDT whose code selector it has: so each path has its own
 * order. Task registers are loaded from the GDT in the page, whose copies of the descriptors are
 * never busy, since the base's own GDT cannot be written.
 *
 * Writing CR4 with another value of PGE flushes the TLB, translations of global pages included.
 *
 * Returns are plain: the base's return thunks are not mapped in the node.
 */
#include <linux/linkage.h>
#include <linux/objtool.h>
#include <asm/msr-index.h>
#include <asm/nospec-branch.h>
#include <asm/processor-flags.h>
#include <asm/unwind_hints.h>

#include "core_switch.h"

	.macro PUSH_REGISTERS
	pushfq
	pushq	%rbp
	pushq	%rbx
	pushq	%r12
	pushq	%r13
	pushq	%r14
	pushq	%r15
	.endm

	.macro POP_REGISTERS_AND_RETURN
	popq	%r15
	popq	%r14
	popq	%r13
	popq	%r12
	popq	%rbx
	popq	%rbp
	popfq
	ANNOTATE_UNRET_SAFE
	ret
	int3
	.endm

	.macro SAVE_MSR number, index
	movl	$\number, %ecx
	rdmsr
	movl	%eax, STATE_MSRS + 8 * \index(%r12)
	movl	%edx, STATE_MSRS + 8 * \index + 4(%r12)
	.endm

	.macro LOAD_MSR number, index
	movl	$\number, %ecx
	movl	STATE_MSRS + 8 * \index(%r12), %eax
	movl	STATE_MSRS + 8 * \index + 4(%r12), %edx
	wrmsr
	.endm

	.macro FOR_MSRS what
	\what	MSR_FS_BASE, 0
	\what	MSR_GS_BASE, 1
	\what	MSR_KERNEL_GS_BASE, 2
	\what	MSR_STAR, 3
	\what	MSR_LSTAR, 4
	\what	MSR_SYSCALL_MASK, 5
	\what	MSR_TSC_AUX, 6
	\what	MSR_IA32_SYSENTER_CS, 7
	.endm

	/* Save the registers of the running kernel at R12. */
	.macro SAVE_STATE
	movq	%rsp, STATE_RSP(%r12)
	movq	%cr0, %rax
	movq	%rax, STATE_CR0(%r12)
	movq	%cr3, %rax
	movq	%rax, STATE_CR3(%r12)
	movq	%cr4, %rax
	movq	%rax, STATE_CR4(%r12)
	sgdt	STATE_GDTR(%r12)
	sidt	STATE_IDTR(%r12)
	sldt	STATE_LDTR(%r12)
	movw	%ds, STATE_DS(%r12)
	movw	%es, STATE_ES(%r12)
	movw	%fs, STATE_FS(%r12)
	movw	%gs, STATE_GS(%r12)
	FOR_MSRS SAVE_MSR
	.endm

	/* A program may have changed the descriptor since it was loaded: then load none. */
	.macro LOAD_SEGMENT register, offset
	movzwl	\offset(%r12), %eax
	lar	%eax, %ecx
	jnz	.Lnull\@
	testl	$0x8000, %ecx			/* present */
	jz	.Lnull\@
	verr	%ax
	jz	.Lload\@
.Lnull\@:
	xorl	%eax, %eax
.Lload\@:
	movl	%eax, \register
	.endm

	/* Load data segments, then the bases that this has changed. */
	.macro LOAD_SEGMENTS
	LOAD_SEGMENT %ds, STATE_DS
	LOAD_SEGMENT %es, STATE_ES
	LOAD_SEGMENT %fs, STATE_FS
	LOAD_SEGMENT %gs, STATE_GS
	FOR_MSRS LOAD_MSR
	.endm

	.macro LOAD_CONTROL
	movq	STATE_CR4(%r12), %rax
	movq	STATE_CR3(%r12), %rcx
	movq	STATE_CR0(%r12), %rdx
	.endm

	/* From the base to its page table without global pages, and on to the node's. */
	.macro LEAVE_BASE
	lidt	SWITCH_BASE_IDTR(%rbx)
	xorl	%eax, %eax
	movl	%eax, %ss
	lgdt	SWITCH_GDTR(%rbx)
	leaq	SWITCH_STACK(%rbx), %rsp
	leaq	SWITCH_NODE(%rbx), %r12
	LOAD_CONTROL
	movq	%rax, %cr4
	movq	%rcx, %cr3
	movq	%rdx, %cr0
	xorl	%eax, %eax
	lldt	%ax
	.endm

	.section .text.insula_switch, "ax"
	.balign	4096, 0xcc
/* void insula_switch_enter(void *page): return to the node, where it has left. */
SYM_FUNC_START(insula_switch_enter)
	ANNOTATE_NOENDBR	/* its address only tells where the page is */
	PUSH_REGISTERS
	movq	%rdi, %rbx
	leaq	SWITCH_BASE(%rbx), %r12
	SAVE_STATE
	LEAVE_BASE
	movl	$SWITCH_NODE_TSS, %eax
	btrq	$41, SWITCH_GDT + SWITCH_NODE_TSS(%rbx)	/* not busy */
	ltr	%ax
	/* The base may be in an NMI handler: this is what ends the blocking of NMIs. */
	movq	%rsp, %rax
	pushq	$0
	pushq	%rax
	pushfq
	pushq	$SWITCH_NODE_CS
	leaq	1f(%rip), %rax
	pushq	%rax
	iretq
1:	lidt	STATE_IDTR(%r12)
	lgdt	STATE_GDTR(%r12)
	LOAD_SEGMENTS
	movl	$0x10, %eax				/* its data */
	movl	%eax, %ss
	movq	STATE_RSP(%r12), %rsp
	POP_REGISTERS_AND_RETURN
SYM_FUNC_END(insula_switch_enter)
	STACK_FRAME_NON_STANDARD insula_switch_enter

/* void insula_switch_start(void *page, u64 entry, u64 argument): enter it for the first time. */
SYM_FUNC_START(insula_switch_start)
	PUSH_REGISTERS
	movq	%rdi, %rbx
	movq	%rsi, %r14
	movq	%rdx, %r15
	leaq	SWITCH_BASE(%rbx), %r12
	SAVE_STATE
	LEAVE_BASE
	pushq	$SWITCH_NODE_CS
	leaq	1f(%rip), %rax
	pushq	%rax
	lretq
1:	lidt	SWITCH_NODE_IDTR(%rbx)
	xorl	%eax, %eax
	movl	%eax, %ds
	movl	%eax, %es
	movl	%eax, %fs
	movl	%eax, %gs
	/* Programs shall not enter the base by SYSENTER. */
	xorl	%edx, %edx
	movl	$MSR_IA32_SYSENTER_CS, %ecx
	wrmsr
	movq	%r15, %rsi
	movq	%rbx, %rdx
	ANNOTATE_RETPOLINE_SAFE
	jmpq	*%r14
	int3
SYM_FUNC_END(insula_switch_start)
	STACK_FRAME_NON_STANDARD insula_switch_start

/* void leave(struct insula_shared_core *page): called by the node's kernel. */
SYM_FUNC_START(insula_switch_leave)
	ANNOTATE_NOENDBR	/* the node calls it, which has no CET */
	PUSH_REGISTERS
	movq	%rdi, %rbx
	leaq	SWITCH_NODE(%rbx), %r12
	SAVE_STATE
	/* Copy its TSS descriptor. */
	movq	STATE_GDTR + 2(%r12), %rcx
	str	%ax
	movzwl	%ax, %eax
	movq	(%rcx,%rax), %rdx
	movq	%rdx, SWITCH_GDT + SWITCH_NODE_TSS(%rbx)
	movq	8(%rcx,%rax), %rdx
	movq	%rdx, SWITCH_GDT + SWITCH_NODE_TSS + 8(%rbx)
.Lleave:
	xorl	%eax, %eax
	movl	%eax, %ss
	lgdt	SWITCH_GDTR(%rbx)
	lidt	SWITCH_BASE_IDTR(%rbx)
	leaq	SWITCH_STACK(%rbx), %rsp
	leaq	SWITCH_BASE(%rbx), %r12
	LOAD_CONTROL
	movq	%rdx, %cr0
	movq	%rcx, %cr3
	movq	%rax, %cr4
	movl	$SWITCH_BASE_TSS, %eax
	btrq	$41, SWITCH_GDT + SWITCH_BASE_TSS(%rbx)
	ltr	%ax
	pushq	$SWITCH_BASE_CS
	leaq	1f(%rip), %rax
	pushq	%rax
	lretq
1:	lgdt	STATE_GDTR(%r12)
	lldt	STATE_LDTR(%r12)
	LOAD_SEGMENTS
	movl	$0x18, %eax				/* __KERNEL_DS */
	movl	%eax, %ss
	movq	STATE_RSP(%r12), %rsp
	lidt	STATE_IDTR(%r12)
	POP_REGISTERS_AND_RETURN
SYM_FUNC_END(insula_switch_leave)
	STACK_FRAME_NON_STANDARD insula_switch_leave

/*
 * Exceptions while the IDT is one of the page's: 16 bytes for each. The IDT tells which page that
 * is, since the interrupted code may have changed all other registers.
 */
	.balign	16
/* Kernels before 6.15 begin functions with ENDBR by SYM_FUNC_START. */
SYM_START(insula_switch_exceptions, SYM_L_GLOBAL, SYM_A_NONE)
	.set	vector, 0
	.rept	SWITCH_EXCEPTIONS
	.org	insula_switch_exceptions + 16 * vector, 0xcc
	ENDBR
	.if	vector == 2
	jmp	.Lnmi
	.else
	.if	!((vector == 8) || (vector >= 10 && vector <= 14) || (vector == 17) || \
		  (vector == 21) || (vector == 29) || (vector == 30))	/* no error code */
	pushq	$0
	.endif
	pushq	$vector
	jmp	.Lfault
	.endif
	.set	vector, vector + 1
	.endr
.Lnmi:
	pushq	%rax
	subq	$16, %rsp
	sidt	(%rsp)
	movq	2(%rsp), %rax
	andq	$-4096, %rax
	lock incq SHARED_NMIS(%rax)
	cmpq	$0, SHARED_ABANDON(%rax)
	jne	.Labandon
	addq	$16, %rsp
	popq	%rax
	iretq
.Labandon:
	movq	%rax, %rbx
	movq	$SHARED_ENDED, SHARED_REASON(%rbx)
	jmp	.Lleave
.Lfault:
	subq	$16, %rsp
	sidt	(%rsp)
	movq	2(%rsp), %rbx
	andq	$-4096, %rbx
	movq	16(%rsp), %rax
	movq	%rax, SWITCH_FAULT(%rbx)
	movq	24(%rsp), %rax
	movq	%rax, SWITCH_FAULT + 8(%rbx)
	movq	32(%rsp), %rax
	movq	%rax, SWITCH_FAULT + 16(%rbx)
	movq	$SHARED_ENDED, SHARED_REASON(%rbx)
	jmp	.Lleave
SYM_FUNC_END(insula_switch_exceptions)
	STACK_FRAME_NON_STANDARD insula_switch_exceptions
	/* Nothing else is in this page. */
	.balign	4096, 0xcc

	.text
/* void insula_switch_interrupt(u32 vector): enter this kernel as by an interrupt. */
SYM_FUNC_START(insula_switch_interrupt)
	movl	%edi, %eax
	shlq	$4, %rax
	leaq	.Linterrupts(%rip), %rdi
	addq	%rdi, %rax
	ANNOTATE_RETPOLINE_SAFE
	jmp	*%rax
	.balign	16
.Linterrupts:
	.set	vector, 0
	.rept	256
	.balign	16
	UNWIND_HINT_FUNC
	ENDBR
	int	$vector
	RET
	.set	vector, vector + 1
	.endr
SYM_FUNC_END(insula_switch_interrupt)
