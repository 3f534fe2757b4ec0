// SPDX-License-Identifier: GPL-2.0-only
#include "insula_module.h"

#include <linux/irqdomain.h>
#include <linux/smp.h>

#include <asm/apic.h>
#include <asm/cpufeature.h>
#include <asm/irq_vectors.h>
#include <asm/irqdomain.h>
#include <asm/smp.h>
#include <asm/svm.h>
#include <asm/tsc.h>
#include <asm/vmx.h>

#include "arch/x86/processor.h"
#include "compat/msr.h"

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
	       (insula_processor_virtualizes() ? INSULA_MACHINE_VIRTUALIZES : 0) |
	       (boot_cpu_has(X86_FEATURE_VMX) ? INSULA_MACHINE_VMX : 0);
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

static bool processor_has_svm(void)
{
	u64 control;

	return boot_cpu_has(X86_FEATURE_SVM) && boot_cpu_has(X86_FEATURE_NPT) &&
	       !rdmsrq_safe(MSR_VM_CR, &control) && !(control & SVM_VM_CR_SVM_DIS_MASK);
}

/* Whether all controls may be on, by the capability register of their group. */
static bool processor_has_controls(u32 msr, u32 controls)
{
	u64 allowed;

	return !rdmsrq_safe(msr, &allowed) && (allowed >> 32 & controls) == controls;
}

/* Whether firmware has left VMX on. KVM's use of it is none here: it leaves offline cores. */
static bool processor_vmx_enabled(void)
{
	u64 on = FEAT_CTL_LOCKED | FEAT_CTL_VMX_ENABLED_OUTSIDE_SMX;
	u64 control;

	return boot_cpu_has(X86_FEATURE_VMX) && !rdmsrq_safe(MSR_IA32_FEAT_CTL, &control) &&
	       (control & on) == on;
}

/* The most recent features that the monitor needs; it checks the others by itself. */
static bool processor_has_vmx(void)
{
	u32 pin = PIN_BASED_NMI_EXITING | PIN_BASED_VIRTUAL_NMIS | PIN_BASED_VMX_PREEMPTION_TIMER;
	u32 secondary = SECONDARY_EXEC_ENABLE_EPT | SECONDARY_EXEC_ENABLE_VPID |
			SECONDARY_EXEC_UNRESTRICTED_GUEST;

	return processor_vmx_enabled() &&
	       processor_has_controls(MSR_IA32_VMX_TRUE_PINBASED_CTLS, pin) &&
	       processor_has_controls(MSR_IA32_VMX_PROCBASED_CTLS2, secondary);
}

bool insula_processor_virtualizes(void)
{
	return boot_cpu_has(X86_FEATURE_X2APIC) && (processor_has_svm() || processor_has_vmx());
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
