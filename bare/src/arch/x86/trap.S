/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Entries to the kernel and exits to programs.
 *
 * A kernel enters a program by calling `bare_enter_user`, and that call returns when the program
 * needs the kernel: by SYSCALL, an exception or an interrupt. So there is one kernel stack per
 * core, no state of a program is left on it, and Rust sees plain calls.
 *
 * In the kernel, GS points to the per-core data (struct PerCore: offsets CORE_*), and the program's
 * GS base is in IA32_KERNEL_GS_BASE. Interrupts are off, except where the kernel waits for one; an
 * interrupt then goes to `bare_kernel_trap` and returns.
 *
 * Offsets of struct UserContext: CONTEXT_*. user.rs and per_core.rs check both sets of offsets.
 */
	.set	CORE_KERNEL_RSP, 8
	.set	CORE_CONTEXT, 16
	.set	CORE_SCRATCH, 24

	.set	CONTEXT_RAX, 0
	.set	CONTEXT_RBX, 8
	.set	CONTEXT_RCX, 16
	.set	CONTEXT_RDX, 24
	.set	CONTEXT_RSI, 32
	.set	CONTEXT_RDI, 40
	.set	CONTEXT_RBP, 48
	.set	CONTEXT_RSP, 56
	.set	CONTEXT_R8, 64
	.set	CONTEXT_R9, 72
	.set	CONTEXT_R10, 80
	.set	CONTEXT_R11, 88
	.set	CONTEXT_R12, 96
	.set	CONTEXT_R13, 104
	.set	CONTEXT_R14, 112
	.set	CONTEXT_R15, 120
	.set	CONTEXT_RIP, 128
	.set	CONTEXT_RFLAGS, 136
	.set	CONTEXT_VECTOR, 144
	.set	CONTEXT_ERROR, 152

	.set	KERNEL_DS, 0x10
	.set	USER_CS, 0x23
	.set	USER_SS, 0x1b
	.set	VECTOR_SYSCALL, 256
	.set	RFLAGS_TF, 0x100

	/* Save all but RDI, RSP, RIP and RFLAGS to the context at RDI. */
	.macro SAVE_REGISTERS
	movq	%rax, CONTEXT_RAX(%rdi)
	movq	%rbx, CONTEXT_RBX(%rdi)
	movq	%rcx, CONTEXT_RCX(%rdi)
	movq	%rdx, CONTEXT_RDX(%rdi)
	movq	%rsi, CONTEXT_RSI(%rdi)
	movq	%rbp, CONTEXT_RBP(%rdi)
	movq	%r8, CONTEXT_R8(%rdi)
	movq	%r9, CONTEXT_R9(%rdi)
	movq	%r10, CONTEXT_R10(%rdi)
	movq	%r11, CONTEXT_R11(%rdi)
	movq	%r12, CONTEXT_R12(%rdi)
	movq	%r13, CONTEXT_R13(%rdi)
	movq	%r14, CONTEXT_R14(%rdi)
	movq	%r15, CONTEXT_R15(%rdi)
	.endm

	/* Load all but RDI, RSP, RCX and R11 from the context at RDI. */
	.macro LOAD_REGISTERS
	movq	CONTEXT_RAX(%rdi), %rax
	movq	CONTEXT_RBX(%rdi), %rbx
	movq	CONTEXT_RDX(%rdi), %rdx
	movq	CONTEXT_RSI(%rdi), %rsi
	movq	CONTEXT_RBP(%rdi), %rbp
	movq	CONTEXT_R8(%rdi), %r8
	movq	CONTEXT_R9(%rdi), %r9
	movq	CONTEXT_R10(%rdi), %r10
	movq	CONTEXT_R12(%rdi), %r12
	movq	CONTEXT_R13(%rdi), %r13
	movq	CONTEXT_R14(%rdi), %r14
	movq	CONTEXT_R15(%rdi), %r15
	.endm

	/* Last: the instructions after it leave no data of the kernel in the buffers. */
	.macro CLEAR_BUFFERS
	cmpb	$0, bare_clears_buffers(%rip)
	je	1f
	verw	kernel_data(%rip)
1:
	.endm

	.text
	.code64
	/* void bare_enter_user(struct UserContext *context) */
	.globl	bare_enter_user
bare_enter_user:
	pushq	%rbx
	pushq	%rbp
	pushq	%r12
	pushq	%r13
	pushq	%r14
	pushq	%r15
	movq	%rsp, %gs:CORE_KERNEL_RSP
	movq	%rdi, %gs:CORE_CONTEXT
	/*
	 * SYSRET loads RIP from RCX and RFLAGS from R11, which is what SYSCALL has left there unless
	 * the kernel gave the program other registers. With TF the program would be trapped before
	 * its instruction. RIP is canonical (UserContext::run): else SYSRET would fault in the kernel.
	 */
	movq	CONTEXT_RIP(%rdi), %rcx
	movq	CONTEXT_RFLAGS(%rdi), %r11
	cmpq	$VECTOR_SYSCALL, CONTEXT_VECTOR(%rdi)
	jne	enter_by_iret
	cmpq	%rcx, CONTEXT_RCX(%rdi)
	jne	enter_by_iret
	cmpq	%r11, CONTEXT_R11(%rdi)
	jne	enter_by_iret
	testl	$RFLAGS_TF, %r11d
	jnz	enter_by_iret
	LOAD_REGISTERS
	movq	CONTEXT_RSP(%rdi), %rsp
	movq	CONTEXT_RDI(%rdi), %rdi
	CLEAR_BUFFERS
	swapgs
	sysretq

enter_by_iret:
	pushq	$USER_SS
	pushq	CONTEXT_RSP(%rdi)
	pushq	CONTEXT_RFLAGS(%rdi)
	pushq	$USER_CS
	pushq	CONTEXT_RIP(%rdi)
	LOAD_REGISTERS
	movq	CONTEXT_RCX(%rdi), %rcx
	movq	CONTEXT_R11(%rdi), %r11
	movq	CONTEXT_RDI(%rdi), %rdi
	CLEAR_BUFFERS
	swapgs
	iretq
kernel_data:
	.word	KERNEL_DS

	/* SYSCALL: RCX is the program's RIP, R11 its RFLAGS; the mask has cleared IF, DF and AC. */
	.globl	bare_syscall_entry
bare_syscall_entry:
	swapgs
	movq	%rdi, %gs:CORE_SCRATCH
	movq	%gs:CORE_CONTEXT, %rdi
	SAVE_REGISTERS
	movq	%rsp, CONTEXT_RSP(%rdi)
	movq	%rcx, CONTEXT_RIP(%rdi)
	movq	%r11, CONTEXT_RFLAGS(%rdi)
	movq	$VECTOR_SYSCALL, CONTEXT_VECTOR(%rdi)
	movq	%gs:CORE_SCRATCH, %rax
	movq	%rax, CONTEXT_RDI(%rdi)
	movq	%gs:CORE_KERNEL_RSP, %rsp
	jmp	return_to_kernel

	/* On the stack: vector, error, RIP, CS, RFLAGS, RSP, SS. */
	.globl	bare_trap_common
bare_trap_common:
trap_common:
	testb	$3, 24(%rsp)
	jz	trap_in_kernel
	swapgs
	movq	%rdi, %gs:CORE_SCRATCH
	movq	%gs:CORE_CONTEXT, %rdi
	SAVE_REGISTERS
	movq	%gs:CORE_SCRATCH, %rax
	movq	%rax, CONTEXT_RDI(%rdi)
	popq	CONTEXT_VECTOR(%rdi)
	popq	CONTEXT_ERROR(%rdi)
	popq	CONTEXT_RIP(%rdi)
	addq	$8, %rsp
	popq	CONTEXT_RFLAGS(%rdi)
	popq	CONTEXT_RSP(%rdi)

	/* Return to the caller of bare_enter_user, with the flags of the calling convention. */
leave_user:
	movq	%gs:CORE_KERNEL_RSP, %rsp
	pushq	$2
	popfq
return_to_kernel:
	popq	%r15
	popq	%r14
	popq	%r13
	popq	%r12
	popq	%rbp
	popq	%rbx
	retq

	/* At the call the stack holds a struct KernelFrame (trap.rs). */
trap_in_kernel:
	pushq	%rax
	pushq	%rbx
	pushq	%rcx
	pushq	%rdx
	pushq	%rsi
	pushq	%rdi
	pushq	%rbp
	pushq	%r8
	pushq	%r9
	pushq	%r10
	pushq	%r11
	pushq	%r12
	pushq	%r13
	pushq	%r14
	pushq	%r15
	cld
	movq	%rsp, %rdi
	movq	%rsp, %rbx
	andq	$-16, %rsp
	call	bare_kernel_trap
	movq	%rbx, %rsp
	popq	%r15
	popq	%r14
	popq	%r13
	popq	%r12
	popq	%r11
	popq	%r10
	popq	%r9
	popq	%r8
	popq	%rbp
	popq	%rdi
	popq	%rsi
	popq	%rdx
	popq	%rcx
	popq	%rbx
	popq	%rax
	addq	$16, %rsp
	iretq

	/*
	 * An NMI may arrive at any instruction, also before SWAPGS, so it only reads two words. It
	 * halts the core if the kernel is stopping; else it is the kernel's, or ignored.
	 */
trap_nmi:
	cmpb	$0, bare_stop_on_nmi(%rip)
	jne	1f
	cmpq	$0, bare_nmi_entry(%rip)
	jne	2f
	iretq
1:	hlt
	jmp	1b
2:	jmpq	*bare_nmi_entry(%rip)

	/* 256 entries of 16 bytes: for exceptions with an error code they do not push one. */
	.balign	16
	.globl	bare_trap_entries
bare_trap_entries:
	.set	vector, 0
	.rept	256
	.balign	16
	.if	vector == 2
	jmp	trap_nmi
	.else
	.if	(vector != 8) && (vector != 10) && (vector != 11) && (vector != 12) && (vector != 13) && (vector != 14) && (vector != 17) && (vector != 21) && (vector != 29) && (vector != 30)
	pushq	$0
	.endif
	pushq	$vector
	jmp	trap_common
	.endif
	.set	vector, vector + 1
	.endr
	.balign	16
