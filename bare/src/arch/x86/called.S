/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * NMIs of a core that is shared with the base: they are the base's. In a program one ends the
 * program's run, as an interrupt does. In the kernel it is only counted, unless the base wants its
 * core back whatever the kernel is doing: then it is left for good.
 *
 * Offsets of struct SharedCore, which called.rs checks: CALLED_*.
 */
	.set	CALLED_LEAVE, 0x10
	.set	CALLED_ABANDON, 0x40
	.set	CALLED_NMIS, 0x88
	.set	CALLED_REASON, 0x90
	.set	CALLED_ENDED, 3
	.set	VECTOR_NMI, 2

	.text
	.code64
	.globl	bare_called_nmi
bare_called_nmi:
	testb	$3, 8(%rsp)
	jz	1f
	pushq	$0
	pushq	$VECTOR_NMI
	jmp	bare_trap_common
1:	pushq	%rax
	movq	bare_called_page(%rip), %rax
	lock incq CALLED_NMIS(%rax)
	cmpq	$0, CALLED_ABANDON(%rax)
	jne	2f
	popq	%rax
	iretq
2:	movq	%rax, %rdi
	movq	$CALLED_ENDED, CALLED_REASON(%rdi)
	callq	*CALLED_LEAVE(%rdi)
	ud2
