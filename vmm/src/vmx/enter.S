/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Entry of the guest, and NMIs while the monitor runs.
 *
 * `vmm_vmx_enter(registers: *mut Registers, launched: bool) -> bool`: runs the guest until its next exit,
 * and returns 0; or returns 1, if it could not be entered. The processor switches what the VMCS holds,
 * RSP, RIP and RFLAGS among it, this code the general registers (Intel SDM volume 3, chapters 27 and 28).
 *
 * Offsets of struct Registers: GUEST_*. vmx/mod.rs and guest.rs check them.
 */
	.set	GUEST_RBX, 0
	.set	GUEST_RCX, 8
	.set	GUEST_RDX, 16
	.set	GUEST_RSI, 24
	.set	GUEST_RDI, 32
	.set	GUEST_RBP, 40
	.set	GUEST_R8, 48
	.set	GUEST_R9, 56
	.set	GUEST_R10, 64
	.set	GUEST_R11, 72
	.set	GUEST_R12, 80
	.set	GUEST_R13, 88
	.set	GUEST_R14, 96
	.set	GUEST_R15, 104
	.set	GUEST_RAX, 112

	.set	FIELD_PIN_CONTROLS, 0x4000
	.set	FIELD_HOST_RSP, 0x6c14
	.set	FIELD_HOST_RIP, 0x6c16

	/* The words for NMIs, from the core's descriptor tables (area.rs). */
	.set	NMI_TAKEN, -0x3010
	.set	NMI_CONTROLS, -0x3008

	.text
	.globl	vmm_vmx_enter
vmm_vmx_enter:
	pushq	%rbx
	pushq	%rbp
	pushq	%r12
	pushq	%r13
	pushq	%r14
	pushq	%r15
	pushq	%rdi
	movl	$FIELD_HOST_RSP, %eax
	vmwrite	%rsp, %rax
	movl	$FIELD_HOST_RIP, %eax
	leaq	vmx_exited(%rip), %rcx
	vmwrite	%rcx, %rax
	testl	%esi, %esi
	movq	GUEST_RAX(%rdi), %rax
	movq	GUEST_RBX(%rdi), %rbx
	movq	GUEST_RCX(%rdi), %rcx
	movq	GUEST_RDX(%rdi), %rdx
	movq	GUEST_RSI(%rdi), %rsi
	movq	GUEST_RBP(%rdi), %rbp
	movq	GUEST_R8(%rdi), %r8
	movq	GUEST_R9(%rdi), %r9
	movq	GUEST_R10(%rdi), %r10
	movq	GUEST_R11(%rdi), %r11
	movq	GUEST_R12(%rdi), %r12
	movq	GUEST_R13(%rdi), %r13
	movq	GUEST_R14(%rdi), %r14
	movq	GUEST_R15(%rdi), %r15
	movq	GUEST_RDI(%rdi), %rdi
	jnz	1f
	vmlaunch
	jmp	2f
1:	vmresume
	/* Only a failed entry comes here. */
2:	movl	$1, %eax
	popq	%rdi
	jmp	3f
vmx_exited:
	/* RDI is the guest's; the pointer to the registers is on the stack. */
	xchgq	%rdi, (%rsp)
	movq	%rax, GUEST_RAX(%rdi)
	movq	%rbx, GUEST_RBX(%rdi)
	movq	%rcx, GUEST_RCX(%rdi)
	movq	%rdx, GUEST_RDX(%rdi)
	movq	%rsi, GUEST_RSI(%rdi)
	movq	%rbp, GUEST_RBP(%rdi)
	movq	%r8, GUEST_R8(%rdi)
	movq	%r9, GUEST_R9(%rdi)
	movq	%r10, GUEST_R10(%rdi)
	movq	%r11, GUEST_R11(%rdi)
	movq	%r12, GUEST_R12(%rdi)
	movq	%r13, GUEST_R13(%rdi)
	movq	%r14, GUEST_R14(%rdi)
	movq	%r15, GUEST_R15(%rdi)
	popq	GUEST_RDI(%rdi)
	xorl	%eax, %eax
3:	popq	%r15
	popq	%r14
	popq	%r13
	popq	%r12
	popq	%rbp
	popq	%rbx
	retq

	/*
	 * An NMI while the monitor runs, perhaps just before it enters a guest: has the guest of the current
	 * VMCS exit at once, by a timer that has run down, and notes it, as that may not be entered next.
	 * The controls are 0 while the core has no VMCS.
	 */
	.globl	vmm_vmx_nmi
vmm_vmx_nmi:
	pushq	%rax
	pushq	%rdx
	movq	%gs:0, %rdx
	movq	NMI_CONTROLS(%rdx), %rax
	testq	%rax, %rax
	jz	1f
	movq	$1, NMI_TAKEN(%rdx)
	movl	$FIELD_PIN_CONTROLS, %edx
	vmwrite	%rax, %rdx
1:	popq	%rdx
	popq	%rax
	iretq
