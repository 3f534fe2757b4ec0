/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Exceptions and interrupts.
 *
 * `hostile_attempt(function, argument, frame)`: calls the function with its argument. Returns -1, or the
 * vector of the exception that ended it. The frame, 40 bytes: RSP, CR3, CR0, CR4, EFER. It is at the
 * beginning of the page that is the stack of exceptions: so a handler finds it by RSP.
 *
 * Exceptions: the registers of the frame are put back, and `hostile_attempt` returns. Interrupts and NMIs
 * are acknowledged, and the interrupted code goes on.
 */
	.set	FRAME_RSP, 0
	.set	FRAME_CR3, 8
	.set	FRAME_CR0, 16
	.set	FRAME_CR4, 24
	.set	FRAME_EFER, 32
	.set	EFER, 0xc0000080
	.set	END_OF_INTERRUPT, 0x80b

	.text
	.globl	hostile_attempt
hostile_attempt:
	pushq	%rbx
	pushq	%rbp
	pushq	%r12
	pushq	%r13
	pushq	%r14
	pushq	%r15
	subq	$8, %rsp
	movq	%rsp, FRAME_RSP(%rdx)
	movq	%rdi, %r8
	movq	%rsi, %rdi
	call	*%r8
	movl	$-1, %eax
return:
	addq	$8, %rsp
	popq	%r15
	popq	%r14
	popq	%r13
	popq	%r12
	popq	%rbp
	popq	%rbx
	retq

	/* Exceptions, 16 bytes each. */
	.balign	16
	.globl	hostile_exceptions
hostile_exceptions:
	.set	vector, 0
	.rept	32
	.balign	16
	movl	$vector, %edi
	jmp	exception
	.set	vector, vector + 1
	.endr

exception:
	movq	%rsp, %rbx
	andq	$~4095, %rbx
	movq	FRAME_CR3(%rbx), %rax
	movq	%rax, %cr3
	movq	FRAME_CR4(%rbx), %rax
	movq	%rax, %cr4
	movq	FRAME_CR0(%rbx), %rax
	movq	%rax, %cr0
	movl	$EFER, %ecx
	movl	FRAME_EFER(%rbx), %eax
	xorl	%edx, %edx
	wrmsr
	xorl	%eax, %eax
	movq	%rax, %dr7
	movq	FRAME_RSP(%rbx), %rsp
	pushq	$2				/* flags: no trap flag, no interrupts */
	popfq
	movl	%edi, %eax
	jmp	return

	.globl	hostile_nmi
hostile_nmi:
	iretq

	.globl	hostile_interrupt
hostile_interrupt:
	pushq	%rax
	pushq	%rcx
	pushq	%rdx
	movl	$END_OF_INTERRUPT, %ecx
	xorl	%eax, %eax
	xorl	%edx, %edx
	wrmsr
	popq	%rdx
	popq	%rcx
	popq	%rax
	iretq
