/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Entry of the guest.
 *
 * `vmm_svm_enter(guest: u64, host: u64, registers: *mut GuestRegisters)`: runs the guest until its next
 * exit. Both numbers are physical addresses of VMCBs: VMRUN, VMLOAD and VMSAVE take them in RAX. VMRUN
 * itself switches RAX, RSP, RIP and what else the VMCB holds; VMLOAD and VMSAVE switch FS, GS, TR, LDTR
 * and the registers of SYSCALL and SYSENTER; this code the general registers (AMD APM volume 2, 15.5).
 * The global interrupt flag is clear in the monitor and set by VMRUN, so nothing can interrupt between.
 *
 * Offsets of struct GuestRegisters: GUEST_*. svm/mod.rs checks them.
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

	.text
	.globl	vmm_svm_enter
vmm_svm_enter:
	pushq	%rbx
	pushq	%rbp
	pushq	%r12
	pushq	%r13
	pushq	%r14
	pushq	%r15
	pushq	%rsi
	pushq	%rdx
	movq	%rdi, %rax
	vmload	%rax
	movq	GUEST_RBX(%rdx), %rbx
	movq	GUEST_RCX(%rdx), %rcx
	movq	GUEST_RSI(%rdx), %rsi
	movq	GUEST_RDI(%rdx), %rdi
	movq	GUEST_RBP(%rdx), %rbp
	movq	GUEST_R8(%rdx), %r8
	movq	GUEST_R9(%rdx), %r9
	movq	GUEST_R10(%rdx), %r10
	movq	GUEST_R11(%rdx), %r11
	movq	GUEST_R12(%rdx), %r12
	movq	GUEST_R13(%rdx), %r13
	movq	GUEST_R14(%rdx), %r14
	movq	GUEST_R15(%rdx), %r15
	movq	GUEST_RDX(%rdx), %rdx
	vmrun	%rax
	vmsave	%rax
	/* RDX is the guest's; the pointer to the registers is on the stack. */
	xchgq	%rdx, (%rsp)
	movq	%rbx, GUEST_RBX(%rdx)
	movq	%rcx, GUEST_RCX(%rdx)
	movq	%rsi, GUEST_RSI(%rdx)
	movq	%rdi, GUEST_RDI(%rdx)
	movq	%rbp, GUEST_RBP(%rdx)
	movq	%r8, GUEST_R8(%rdx)
	movq	%r9, GUEST_R9(%rdx)
	movq	%r10, GUEST_R10(%rdx)
	movq	%r11, GUEST_R11(%rdx)
	movq	%r12, GUEST_R12(%rdx)
	movq	%r13, GUEST_R13(%rdx)
	movq	%r14, GUEST_R14(%rdx)
	movq	%r15, GUEST_R15(%rdx)
	popq	GUEST_RDX(%rdx)
	popq	%rax
	vmload	%rax
	popq	%r15
	popq	%r14
	popq	%r13
	popq	%r12
	popq	%rbp
	popq	%rbx
	retq
