// SPDX-License-Identifier: GPL-2.0-only
#include "insula_module.h"

#include <linux/irqdomain.h>
#include <linux/smp.h>

#include <asm/apic.h>
#include <asm/cpufeature.h>
#include <asm/irq_vectors.h>
#include <asm/irqdomain.h>
#include <asm/msr.h>
#include <asm/smp.h>
#include <asm/svm.h>
#include <asm/tsc.h>

#include "arch/x86/processor.h"

u64 insula_processor_tsc(void)
{
	return rdtsc_ordered();
}

u32 insula_processor_tsc_khz(void)
{
	return tsc_khz;
}

u32 insula_processor_flags(void)
{
	return (x2apic_mode ? INSULA_MACHINE_X2APIC : 0) |
	       (insula_processor_virtualizes() ? INSULA_MACHINE_VIRTUALIZES : 0);
}

u32 insula_processor_apic_id(u32 cpu)
{
	return per_cpu(x86_cpu_to_apicid, cpu);
}

bool insula_processor_vector_valid(u32 vector)
{
	return vector >= FIRST_EXTERNAL_VECTOR && vector < NR_VECTORS;
}

bool insula_processor_interrupts_directly(const struct irq_domain *domain)
{
	return domain == x86_vector_domain;
}

bool insula_processor_virtualizes(void)
{
	u64 control;

	return boot_cpu_has(X86_FEATURE_SVM) && boot_cpu_has(X86_FEATURE_NPT) &&
	       boot_cpu_has(X86_FEATURE_X2APIC) && !rdmsrl_safe(MSR_VM_CR, &control) &&
	       !(control & SVM_VM_CR_SVM_DIS_MASK);
}

/* NULL while nothing is hooked. */
static void (*crash_stop_other_cpus)(void);

void insula_processor_hook_crash(void (*hook)(void))
{
	crash_stop_other_cpus = smp_ops.crash_stop_other_cpus;
	if (crash_stop_other_cpus)
		WRITE_ONCE(smp_ops.crash_stop_other_cpus, hook);
}

void insula_processor_unhook_crash(void)
{
	if (crash_stop_other_cpus)
		WRITE_ONCE(smp_ops.crash_stop_other_cpus, crash_stop_other_cpus);
}

void insula_processor_stop_others(void)
{
	crash_stop_other_cpus();
}
