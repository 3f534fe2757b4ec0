/* SPDX-License-Identifier: GPL-2.0-only */
/* What the rest of the module asks of the processor and its interrupt controllers. */
#ifndef INSULA_PROCESSOR_H
#define INSULA_PROCESSOR_H

#include <linux/types.h>

struct irq_domain;

/* The time stamp counter, read after all earlier instructions. */
u64 insula_processor_tsc(void);

/* Its frequency, as calibrated by the base. */
u32 insula_processor_tsc_khz(void);

/* INSULA_MACHINE_*: the mode of the interrupt controllers. */
u32 insula_processor_flags(void);

/* The APIC id of a core, by the base's number; also of an offline one. */
u32 insula_processor_apic_id(u32 cpu);

/* Whether an interrupt vector may be sent to a core: neither an exception nor out of range. */
bool insula_processor_vector_valid(u32 vector);

/*
 * Whether the processors have virtualization that the monitor of confined nodes knows: AMD's with
 * nested paging, or Intel's with that and unrestricted guests; and x2APIC mode, whether the base
 * uses it or not.
 */
bool insula_processor_virtualizes(void);

/* Whether a domain's interrupts go to the cores without remapping. */
bool insula_processor_interrupts_directly(const struct irq_domain *domain);

/*
 * Call a function in the place of the one by which a panic stops the base's other cores before
 * it starts the crash kernel; the function calls insula_processor_stop_others(). Without effect
 * in a kernel without crash kernels.
 */
void insula_processor_hook_crash(void (*hook)(void));
void insula_processor_unhook_crash(void);

/* Stop the base's other cores, as the hooked function does. */
void insula_processor_stop_others(void);

#endif
