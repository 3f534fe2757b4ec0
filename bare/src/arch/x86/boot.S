/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The first instructions of a kernel, on its first core and on all others.
 *
 * First core: `bare_entry` is entered by Linux' 64-bit boot protocol: 64-bit mode, interrupts off,
 * all memory of the node identity-mapped by the loader's page table, RSI = the physical address of
 * boot_params. The image is loaded at any multiple of 2 MiB. It is linked to run in the top 2 GiB,
 * so the code first builds a page table with three views of the same memory:
 *
 *	entries 0..127    the identity mapping, in which this code runs
 *	entries 256..383  the direct map: physical address + DIRECT_MAP, by the same tables
 *	entry 511         the image at its link address, 16 MiB from its beginning
 *
 * A kernel that is called by another one, on a core that they share (called.rs), is entered in the
 * same way, with the address of the page that they share in RDX. That and the page of the switch
 * are in the last GiB, whose page directory is taken over: only then has the loader's root an entry
 * 511.
 *
 * Other cores: the bytes from `bare_trampoline` to `bare_trampoline_end` are copied to a page below
 * 1 MiB. A start-up IPI starts a core there in real mode, with CS = the page. It enters 64-bit mode
 * with the page table at START_LOW_TABLE, which is below 4 GiB and identity-maps the page, then
 * loads the kernel's own table and stack, and calls Rust. EBX keeps the page's address.
 */
	.set	IMAGE_VIRTUAL, 0xffffffff80000000
	.set	DIRECT_FIRST, 256		/* entry of the root */
	.set	DIRECT_COUNT, 128
	.set	IMAGE_LARGE_PAGES, 8
	.set	PRESENT_WRITABLE, 0x3
	.set	LARGE, 0x80
	.set	CALLED_DIRECTORY, 0x30		/* of struct SharedCore */

	.section .text.entry, "ax"
	.code64
	.globl	bare_entry
bare_entry:
	cli
	cld
	movq	%rdx, %r10
	movq	%cr3, %rax
	andq	$~0xfff, %rax			/* the loader's root */
	movq	8*511(%rax), %r9
	leaq	early_root(%rip), %rdi
	xorl	%ecx, %ecx
1:	movq	(%rax,%rcx,8), %rdx
	movq	%rdx, (%rdi,%rcx,8)
	movq	%rdx, 8*DIRECT_FIRST(%rdi,%rcx,8)
	incl	%ecx
	cmpl	$DIRECT_COUNT, %ecx
	jne	1b

	leaq	early_upper(%rip), %rax
	leaq	early_image(%rip), %rdx
	leaq	PRESENT_WRITABLE(%rax), %rcx
	movq	%rcx, 8*511(%rdi)
	leaq	PRESENT_WRITABLE(%rdx), %rcx
	movq	%rcx, 8*510(%rax)

	xorl	%r11d, %r11d			/* no shared page */
	testb	$1, %r9b			/* is anything mapped there? */
	jz	4f
	movq	%r10, %r11
	movq	CALLED_DIRECTORY(%r10), %rcx
	orq	$PRESENT_WRITABLE, %rcx
	movq	%rcx, 8*511(%rax)
4:
	leaq	_text(%rip), %rbx		/* physical: code is identity-mapped */
	movq	$_text, %rcx
	shrq	$21, %rcx
	andl	$511, %ecx			/* the image's first entry */
	leaq	(PRESENT_WRITABLE+LARGE)(%rbx), %rax
	movl	$IMAGE_LARGE_PAGES, %r8d
2:	movq	%rax, (%rdx,%rcx,8)
	addq	$0x200000, %rax
	incl	%ecx
	decl	%r8d
	jnz	2b

	movq	%rdi, %cr3
	movabsq	$3f, %rax
	jmpq	*%rax
3:	movq	$early_stack_end, %rsp
	xorl	%ebp, %ebp
	movq	%rsi, %rdi			/* boot_params */
	movq	%rbx, %rsi			/* load address of the image */
	movq	%r11, %rdx			/* page of a shared core, or 0 */
	call	bare_first_core
	ud2

	.section .bss.early, "aw", @nobits
	.balign	4096
early_root:	.skip 4096
early_upper:	.skip 4096
early_image:	.skip 4096
early_stack:	.skip 65536
early_stack_end:

	.section .rodata, "a"
	.balign	16
	.globl	bare_trampoline, bare_trampoline_end
	.set	START_LOW_TABLE, 0xf00		/* parameters: offsets in the page */
	.set	START_TABLE, 0xf08
	.set	START_STACK, 0xf10
	.set	START_ENTRY, 0xf18
	.set	START_ARGUMENT, 0xf20
	.set	START_TO32, 0xf28
	.set	START_TO64, 0xf30
	.set	START_GDTR, 0xf38
	.code16
bare_trampoline:
	cli
	cld
	xorl	%ebx, %ebx
	movw	%cs, %bx
	movw	%bx, %ds
	shll	$4, %ebx
	lgdtl	START_GDTR
	movl	$0x11, %eax			/* PE, ET */
	movl	%eax, %cr0
	ljmpl	*START_TO32
	.code32
	.globl	bare_trampoline_32
bare_trampoline_32:
	movl	$0x18, %eax
	movl	%eax, %ds
	movl	%eax, %es
	movl	%eax, %ss
	movl	$0x20, %eax			/* PAE */
	movl	%eax, %cr4
	movl	START_LOW_TABLE(%ebx), %eax
	movl	%eax, %cr3
	movl	$0xc0000080, %ecx		/* EFER: LME, NXE (used by the kernel's table) */
	movl	$0x900, %eax
	xorl	%edx, %edx
	wrmsr
	movl	$0x80000011, %eax		/* PG, ET, PE */
	movl	%eax, %cr0
	ljmpl	*START_TO64(%ebx)
	.code64
	.globl	bare_trampoline_64
bare_trampoline_64:
	movq	START_STACK(%rbx), %rsp
	movq	START_ARGUMENT(%rbx), %rdi
	movq	START_ENTRY(%rbx), %rax
	movq	START_TABLE(%rbx), %rcx
	xorl	%ebp, %ebp
	movq	%rcx, %cr3			/* identity-maps this page, too */
	pushq	$0
	jmpq	*%rax
bare_trampoline_end:
	.code64
