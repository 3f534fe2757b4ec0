// SPDX-License-Identifier: GPL-2.0-only
/*
 * Entering the kernel of a shared core by non-maskable interrupts (NMIs): also while this kernel,
 * the base, has interrupts off there.
 *
 * Who rings, and another core's timer for the kernel's timeouts, send an NMI: a local timer cannot
 * deliver one on all processors. If the base has interrupts on, its handler here only sends the
 * core the kernel's ordinary interrupt, and all is as without NMIs. Otherwise the kernel is entered
 * from the handler. Then:
 *
 * - The base's interrupts stay pending in the local APIC, by its task priority, and so does the
 *   kernel's own. Only the highest class passes, in which no interrupt of a device is: interrupts
 *   among processors, and a timer that bounds the kernel's stay. They end the stay. The kernel ends
 *   them in the local APIC, as the base cannot, and they are sent anew once it has interrupts on:
 *   so each ends one stay only.
 * - Nothing comes through while an interrupt of that class is in service. Linux ends these first of
 *   all, so the kernel is entered soon after, by the interrupt or the other core's next look.
 * - The bound must not depend on other cores: they may be waiting, with interrupts off, for what
 *   the interrupted section holds. So it is the local timer's, which is the base's: set to an
 *   earlier time meanwhile, and to the vector of a reschedule, which does no harm if it comes late.
 *   Afterwards the base is sent a timer interrupt: whatever it finds due, it sets the timer anew.
 * - NMIs are blocked until the next IRET: the switch to the kernel has one. So NMIs reach the
 *   kernel, which leaves for each, and the handler passes it on. Linux notes an NMI that comes
 *   while it handles one, in this handler or after it, and handles it next (exc_nmi(),
 *   asm_exc_nmi).
 * - In a local APIC with memory-mapped registers an interrupt is sent by two writes. The base may
 *   be in between, so the first of these registers is restored.
 * - Between VM entry and the end of VM exit KVM has the guest's XCR0, with which extended registers
 *   of the kernel could not be restored: it is entered soon after.
 *
 * An idle base is not entered this way at first: it goes to sleep with interrupts off on many
 * processors, and wakes for NMIs.
 */
#include "insula_module.h"

#include <linux/atomic.h>
#include <linux/delay.h>
#include <linux/hrtimer.h>
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/smp.h>

#include <asm/apic.h>
#include <asm/fpu/xcr.h>
#include <asm/irq_vectors.h>
#include <asm/nmi.h>
#include <asm/ptrace.h>
#include <asm/tsc.h>

#include "arch/x86/processor.h"
#include "arch/x86/shared_core_internal.h"
#include "compat/msr.h"
#include "compat/timer.h"
#include "insula_shared_core.h"

/* Of task priority: passes vectors from 0xf0 on. */
#define PRIORITY_BELOW_HIGHEST	14
/* In the last of the registers with a bit for each vector in service. */
#define IN_SERVICE_LAST		(APIC_ISR + 0x70)
#define IN_SERVICE_HIGHEST	0xffff0000U
/* The other core looks at least that often whether the kernel is to be entered, */
#define CLOCK_MAX_NS		NSEC_PER_MSEC
/* and that often if the kernel waits for no time. */
#define CLOCK_IDLE_NS		SHARED_CORE_PERIOD_NS
#define CLOCK_MIN_NS		(50 * NSEC_PER_USEC)
/* It leaves the kernel's timeouts so long to the core's own timer. */
#define CLOCK_SLACK_NS		(100 * NSEC_PER_USEC)
#define MEASURE_US		100
/* Those sent at once; more are taken for one. */
#define UNCLAIMED_MAX		4

/* What of the local APIC is changed while the kernel runs in an NMI. */
struct nmi_apic {
	u64 priority;
	u32 timer;
};

static DEFINE_PER_CPU(struct insula_shared_core_state *, nmi_core);
/* How many cores have a kernel that is entered by NMIs; callers of init and exit hold a lock. */
static unsigned int nmi_cores;

bool insula_shared_cores_by_nmi(void)
{
	return READ_ONCE(nmi_cores);
}

static u64 nmi_read_priority(void)
{
	u64 priority;

	asm volatile("mov %%cr8, %0" : "=r" (priority));
	return priority;
}

static void nmi_write_priority(u64 priority)
{
	asm volatile("mov %0, %%cr8" : : "r" (priority) : "memory");
}

static bool nmi_takes_deadlines(u32 timer)
{
	return (timer & APIC_LVT_TIMER_TSCDEADLINE) == APIC_LVT_TIMER_TSCDEADLINE;
}

/* 0 ns: never; less than a tick is one, as 0 would be never to the timer. */
static void nmi_set_timer(const struct insula_shared_core_state *core, u64 wait_ns)
{
	u64 ticks = mul_u64_u32_div(wait_ns, core->nmi.timer_khz ?: tsc_khz, USEC_PER_SEC);

	if (core->nmi.timer_khz)
		apic->write(APIC_TMICT, wait_ns ? clamp_t(u64, ticks, 1, U32_MAX) : 0);
	else
		wrmsrq(MSR_IA32_TSC_DEADLINE, wait_ns ? insula_processor_tsc() + ticks : 0);
}

static void nmi_change_apic(const struct insula_shared_core_state *core, struct nmi_apic *saved)
{
	saved->priority = nmi_read_priority();
	saved->timer = apic->read(APIC_LVTT);
	nmi_write_priority(PRIORITY_BELOW_HIGHEST);
	apic->write(APIC_LVTT, (saved->timer & ~(APIC_LVT_MASKED | APIC_VECTOR_MASK)) |
			       RESCHEDULE_VECTOR);
	asm volatile("mfence" : : : "memory"); /* before a deadline is set */
}

static void nmi_restore_apic(const struct insula_shared_core_state *core,
			     const struct nmi_apic *saved)
{
	nmi_set_timer(core, 0);
	apic->write(APIC_LVTT, saved->timer);
	nmi_write_priority(saved->priority);
	if (!(saved->timer & APIC_LVT_MASKED))
		insula_start_interrupt(core->apic_id, saved->timer & APIC_VECTOR_MASK);
}

static void nmi_defer(struct insula_shared_core_state *core)
{
	struct insula_shared_core *shared = core->core_switch.shared;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(core->nmi.deferred); i++)
		core->nmi.deferred[i] |= xchg(&shared->taken[i], 0);
}

static bool nmi_any_deferred(const struct insula_shared_core_state *core)
{
	const u64 *deferred = core->nmi.deferred;

	return deferred[0] | deferred[1] | deferred[2] | deferred[3];
}

/* An NMI may add to them meanwhile. */
void insula_shared_core_nmi_replay(struct insula_shared_core_state *core)
{
	unsigned int i;
	u64 vectors;

	for (i = 0; i < ARRAY_SIZE(core->nmi.deferred); i++) {
		vectors = xchg(&core->nmi.deferred[i], 0);
		while (vectors) {
			insula_start_interrupt(core->apic_id, 64 * i + __ffs(vectors));
			vectors &= vectors - 1;
		}
	}
}

/* Run the kernel once. Returns whether it is to be entered again in this NMI. */
static bool nmi_enter(struct insula_shared_core_state *core)
{
	u64 began_ns = ktime_get_mono_fast_ns();
	u64 left_ns = insula_shared_core_left_ns(core, began_ns), until_ns, reason;

	if (!left_ns)
		return false;
	until_ns = min(began_ns + left_ns, insula_shared_core_deadline_ns(core, began_ns));
	WRITE_ONCE(core->core_switch.shared->armed, insula_processor_tsc() +
		   mul_u64_u32_div(until_ns - began_ns, tsc_khz, NSEC_PER_MSEC));
	nmi_set_timer(core, until_ns - began_ns);
	reason = insula_shared_core_run(core, began_ns);
	nmi_defer(core);
	if (insula_core_switch_deliver_nmi(&core->core_switch)) {
		/* It is handled once this handler has returned, and then the kernel goes on. */
		WRITE_ONCE(core->nmi.rung, true);
		return false;
	}
	return reason != INSULA_LEAVE_IDLE && READ_ONCE(core->open);
}

/* Run the kernel while this one has interrupts off, and have its interrupt come afterwards. */
static void nmi_run(struct insula_shared_core_state *core)
{
	struct insula_shared_core *shared = core->core_switch.shared;
	u64 armed = READ_ONCE(shared->armed);
	struct nmi_apic saved;

	WRITE_ONCE(core->inside, true);
	smp_mb(); /* either we see it closed, or insula_shared_core_stop() sees us inside */
	if (READ_ONCE(core->open)) {
		nmi_change_apic(core, &saved);
		WRITE_ONCE(shared->interrupts_off, 1);
		while (READ_ONCE(core->open) && nmi_enter(core))
			;
		WRITE_ONCE(shared->interrupts_off, 0);
		WRITE_ONCE(shared->armed, armed);
		nmi_restore_apic(core, &saved);
	}
	smp_store_release(&core->inside, false); /* its memory may be reused from here on */
	if (core->unfinished || nmi_any_deferred(core) ||
	    insula_shared_core_wait_ns(core) != S64_MAX)
		insula_start_interrupt(core->apic_id, core->vector);
}

static bool nmi_may_run(const struct insula_shared_core_state *core, const struct pt_regs *regs)
{
	if (regs->flags & X86_EFLAGS_IF)
		return false;
	if (xgetbv(XCR_XFEATURE_ENABLED_MASK) != core->nmi.extended_enabled ||
	    apic->read(IN_SERVICE_LAST) & IN_SERVICE_HIGHEST)
		return false;
	return !is_idle_task(current) || core->nmi.postponed;
}

/* Whether an NMI that nothing is to be done for may be one that was sent. */
static int nmi_claim(struct insula_shared_core_state *core)
{
	return atomic_dec_if_positive(&core->nmi.unclaimed) >= 0 ? NMI_HANDLED : NMI_DONE;
}

static int nmi_handle(unsigned int type, struct pt_regs *regs)
{
	struct insula_shared_core_state *core = this_cpu_read(nmi_core);
	u32 destination;

	if (!core)
		return NMI_DONE;
	if (!READ_ONCE(core->nmi.rung))
		return nmi_claim(core);
	/* Inside: what runs it looks at `rung` once it has left. */
	if (READ_ONCE(core->inside) || !READ_ONCE(core->entered))
		return NMI_HANDLED;
	destination = insula_start_save_destination();
	if (nmi_may_run(core, regs)) {
		nmi_run(core);
	} else {
		core->nmi.postponed = true;
		insula_start_interrupt(core->apic_id, core->vector);
	}
	insula_start_restore_destination(destination);
	return NMI_HANDLED;
}

/* Code on the core itself needs none: it has interrupts on soon. */
void insula_shared_core_nmi_send(struct insula_shared_core_state *core)
{
	WRITE_ONCE(core->nmi.rung, true);
	if (raw_smp_processor_id() == core->cpu) {
		insula_start_interrupt(core->apic_id, core->vector);
		return;
	}
	atomic_add_unless(&core->nmi.unclaimed, 1, UNCLAIMED_MAX);
	smp_mb(); /* before the NMI, which looks at it */
	insula_start_nmi(core->apic_id);
}

/* When the kernel is to be entered that ought to have been by then. */
static u64 nmi_due_ns(const struct insula_shared_core_state *core, u64 now_ns)
{
	s64 wait_ns;

	if (READ_ONCE(core->inside))
		return now_ns + CLOCK_MAX_NS;
	if (!insula_shared_core_left_ns(core, now_ns))
		return READ_ONCE(core->period_start_ns) + SHARED_CORE_PERIOD_NS;
	if (READ_ONCE(core->nmi.rung) || READ_ONCE(core->unfinished))
		return now_ns;
	wait_ns = insula_shared_core_wait_ns(core);
	if (wait_ns == S64_MAX)
		return now_ns + CLOCK_IDLE_NS;
	return now_ns + clamp_t(s64, wait_ns + CLOCK_SLACK_NS, 0, CLOCK_MAX_NS);
}

static enum hrtimer_restart nmi_clock(struct hrtimer *timer)
{
	struct insula_shared_core_nmi *nmi =
		container_of(timer, struct insula_shared_core_nmi, clock);
	struct insula_shared_core_state *core =
		container_of(nmi, struct insula_shared_core_state, nmi);
	u64 now_ns = ktime_get_ns(), at_ns = nmi_due_ns(core, now_ns);

	if (!READ_ONCE(core->open))
		return HRTIMER_NORESTART;
	if (at_ns <= now_ns) {
		insula_shared_core_nmi_send(core);
		at_ns = now_ns + CLOCK_MAX_NS;
	}
	hrtimer_set_expires(timer, ns_to_ktime(max_t(u64, at_ns, now_ns + CLOCK_MIN_NS)));
	return HRTIMER_RESTART;
}

static void nmi_start_clock(void *core)
{
	struct hrtimer *clock = &((struct insula_shared_core_state *)core)->nmi.clock;

	hrtimer_start(clock, ns_to_ktime(ktime_get_ns() + CLOCK_MAX_NS), HRTIMER_MODE_ABS_PINNED);
}

void insula_shared_core_nmi_start(struct insula_shared_core_state *core)
{
	smp_call_function_single(SHARED_CORE_WATCH_CPU, nmi_start_clock, core, true);
}

void insula_shared_core_nmi_stop(struct insula_shared_core_state *core)
{
	hrtimer_cancel(&core->nmi.clock);
}

/* On the core, whose timer is then set anew by this kernel. */
static void nmi_measure(void *argument)
{
	struct insula_shared_core_state *core = argument;
	u32 timer = apic->read(APIC_LVTT), ticks;
	u64 began;

	core->nmi.extended_enabled = xgetbv(XCR_XFEATURE_ENABLED_MASK);
	if (nmi_takes_deadlines(timer))
		return;
	apic->write(APIC_LVTT, timer | APIC_LVT_MASKED);
	apic->write(APIC_TMICT, U32_MAX);
	began = insula_processor_tsc();
	udelay(MEASURE_US);
	ticks = U32_MAX - apic->read(APIC_TMCCT);
	core->nmi.timer_khz = div64_u64((u64)ticks * tsc_khz, insula_processor_tsc() - began);
	apic->write(APIC_TMICT, 0);
	apic->write(APIC_LVTT, timer);
	if (!(timer & APIC_LVT_MASKED))
		insula_start_interrupt(core->apic_id, timer & APIC_VECTOR_MASK);
}

/* What keeps the core's timer from bounding the kernel's stay, or NULL. */
static const char *nmi_obstacle(const struct insula_shared_core_state *core)
{
	u32 timer = apic->read(APIC_LVTT);

	if (hrtimer_resolution != 1)
		return "this kernel's timers are periodic: boot without highres=off";
	if (!core->nmi.timer_khz && !nmi_takes_deadlines(timer))
		return "the timers of the local APICs do not run";
	return NULL;
}

static int nmi_register(void)
{
	int err = nmi_cores ? 0 : register_nmi_handler(NMI_LOCAL, nmi_handle, 0, "insula");

	if (!err)
		WRITE_ONCE(nmi_cores, nmi_cores + 1);
	return err;
}

int insula_shared_core_nmi_init(struct insula_shared_core_state *core)
{
	const char *obstacle;
	int err;

	insula_hrtimer_setup(&core->nmi.clock, nmi_clock);
	smp_call_function_single(core->cpu, nmi_measure, core, true);
	obstacle = nmi_obstacle(core);
	if (obstacle) {
		pr_err("cores cannot be shared by NMIs: %s\n", obstacle);
		return -EOPNOTSUPP;
	}
	err = nmi_register();
	if (!err)
		WRITE_ONCE(per_cpu(nmi_core, core->cpu), core);
	return err;
}

static void nmi_replay_here(void *core)
{
	insula_shared_core_nmi_replay(core);
}

void insula_shared_core_nmi_exit(struct insula_shared_core_state *core)
{
	insula_shared_core_nmi_stop(core);
	/* By then the core has taken all NMIs that were sent to it, too. */
	smp_call_function_single(core->cpu, nmi_replay_here, core, true);
	WRITE_ONCE(per_cpu(nmi_core, core->cpu), NULL);
	WRITE_ONCE(nmi_cores, nmi_cores - 1);
	if (!nmi_cores)
		unregister_nmi_handler(NMI_LOCAL, "insula");
}
