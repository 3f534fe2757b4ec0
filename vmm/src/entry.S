/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Entry of a core into the monitor: started by the base, in 64-bit mode with the monitor's page table,
 * at the image's link address, with interrupts off and RSI = the virtual address of the core's area
 * (area.rs), at whose end its stack begins.
 */
	.set	AREA_SIZE, 0x20000

	.section .text.entry, "ax"
	.code64
	.globl	vmm_entry
vmm_entry:
	cli
	cld
	leaq	AREA_SIZE(%rsi), %rsp
	xorl	%ebp, %ebp
	movq	%rsi, %rdi
	call	vmm_core
	ud2
