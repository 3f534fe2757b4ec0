// SPDX-License-Identifier: GPL-2.0-only
/*
 * Cores that the base shares with a lightweight kernel (protocol: insula_shared_core.h).
 *
 * The kernel is entered by an interrupt of its own, an ordinary one of the base: from its handler
 * (shared_core_rung()) the core is switched, and the handler returns when the kernel is idle. So
 * the kernel goes first, before all that the base does outside of interrupt handlers. The base's
 * interrupts go first in turn: the kernel leaves for each, the base handles it, nested in the
 * handler, and the kernel goes on. Other cores of the base that wait for an interrupt's work here
 * (for a flush of the TLB, for example) thus never wait for the kernel.
 *
 * What an interrupt leaves to do for later (softirqs, tasks) waits until the kernel is idle or has
 * used up its share of a period: then it is not entered until the next one, whatever rings. So does
 * a task that the kernel interrupted, also one that holds a spinlock: the period is as short as
 * other cores may spin on it.
 *
 * While the kernel has interrupts off it cannot leave. If it hangs there, the base would soon: its
 * other cores wait for this one's answers to their interrupts, also those that would end the node.
 * So a timer of another core watches, and has an NMI take the core away in the end.
 *
 * The kernel's timeouts, and the end of its share, are a timer of the base on that core, so that
 * the base need not give up its own, and idle states that stop local timers do no harm.
 */
#include "insula_module.h"

#include <linux/compiler.h>
#include <linux/delay.h>
#include <linux/hrtimer.h>
#include <linux/jiffies.h>
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/mutex.h>
#include <linux/smp.h>
#include <linux/timer.h>

#include <asm/irq_vectors.h>
#include <asm/tsc.h>

#include "arch/x86/core_switch.h"
#include "arch/x86/doorbell.h"
#include "arch/x86/processor.h"
#include "arch/x86/shared_core.h"
#include "arch/x86/shared_core_internal.h"
#include "arch/x86/start.h"
#include "compat/timer.h"
#include "insula_shared_core.h"
#include "node/monitor_share.h"

#define SHARED_CORES_MAX	16
#define START_TIMEOUT		(10 * HZ)
/* To leave by itself, then by an NMI: its longest work with interrupts off takes much less. */
#define STOP_TIMEOUT		(5 * HZ)
#define POLL_US			50
#define WATCH_INTERVAL		(HZ / 2)

/* The pages lie in the module: see core_switch.c. */
static u8 shared_pages[SHARED_CORES_MAX][PAGE_SIZE] __aligned(PAGE_SIZE);
static struct insula_shared_core_state shared_cores[SHARED_CORES_MAX];

/* Have the timer fire at a time, or before. */
static void shared_core_arm(struct insula_shared_core_state *core, u64 at_ns, u64 now_ns)
{
	struct insula_shared_core *shared = core->core_switch.shared;
	u64 wait_ns;

	if (at_ns >= core->armed_ns)
		return;
	core->armed_ns = at_ns;
	wait_ns = at_ns - min(at_ns, now_ns + 2 * SHARED_CORE_TIMEOUT_MIN_NS); /* rounded down */
	WRITE_ONCE(shared->armed, insula_processor_tsc() +
		   mul_u64_u32_div(wait_ns, tsc_khz, NSEC_PER_MSEC));
	hrtimer_start(&core->timer, ns_to_ktime(at_ns), HRTIMER_MODE_ABS_PINNED);
}

/* Once the kernel has left: have it entered when it wants to, or may. */
static void shared_core_arm_entry(struct insula_shared_core_state *core)
{
	u64 now_ns = ktime_get_mono_fast_ns(), at_ns;

	if (insula_shared_core_left_ns(core, now_ns)) {
		at_ns = insula_shared_core_deadline_ns(core, now_ns);
		if (at_ns == U64_MAX)
			return;
	} else {
		at_ns = core->period_start_ns + SHARED_CORE_PERIOD_NS;
	}
	shared_core_arm(core, at_ns, now_ns);
}

u64 insula_shared_core_run(struct insula_shared_core_state *core, u64 began_ns)
{
	u64 reason;

	if (began_ns - core->period_start_ns >= SHARED_CORE_PERIOD_NS) {
		WRITE_ONCE(core->period_start_ns, began_ns);
		WRITE_ONCE(core->spent_ns, 0);
	}
	WRITE_ONCE(core->entries, core->entries + 1);
	WRITE_ONCE(core->nmi.rung, false); /* it looks at all there is once it is entered */
	core->nmi.postponed = false;
	insula_core_switch_run(&core->core_switch, &core->entry);
	insula_shared_core_account(core, began_ns);
	reason = READ_ONCE(core->core_switch.shared->reason);
	WRITE_ONCE(core->unfinished, reason != INSULA_LEAVE_IDLE && reason != INSULA_LEAVE_ENDED);
	if (reason == INSULA_LEAVE_ENDED)
		WRITE_ONCE(core->open, false);
	return reason;
}

/* Run the kernel once. Returns whether it is to be entered again. */
static bool shared_core_enter(struct insula_shared_core_state *core)
{
	u64 began_ns = ktime_get_mono_fast_ns();
	u64 left_ns = insula_shared_core_left_ns(core, began_ns), reason;

	if (!left_ns)
		return false;
	shared_core_arm(core, min(began_ns + left_ns,
				  insula_shared_core_deadline_ns(core, began_ns)), began_ns);
	reason = insula_shared_core_run(core, began_ns);
	insula_core_switch_deliver(&core->core_switch);
	return reason != INSULA_LEAVE_IDLE && READ_ONCE(core->open);
}

static void shared_core_report_fault(const struct insula_shared_core_state *core)
{
	const u64 *fault = (void *)core->core_switch.shared + SWITCH_FAULT;

	if (fault[2])
		pr_err("the kernel that shares cpu %u failed while it started: exception %llu, error %#llx, at %#llx\n",
		       core->cpu, fault[0], fault[1], fault[2]);
}

/*
 * An NMI that came while it was left found it inside: what it was sent for is to be looked at, once
 * it has some of its share again.
 */
static void shared_core_ring_again(struct insula_shared_core_state *core)
{
	if (READ_ONCE(core->nmi.rung) && READ_ONCE(core->open) &&
	    insula_shared_core_left_ns(core, ktime_get_mono_fast_ns()))
		insula_start_interrupt(core->apic_id, core->vector);
}

static void shared_core_rung(struct insula_doorbell *doorbell)
{
	struct insula_shared_core_state *core =
		container_of(doorbell, struct insula_shared_core_state, doorbell);

	if (smp_processor_id() != core->cpu)
		return;
	if (core->by_nmi)
		insula_shared_core_nmi_replay(core);
	if (!READ_ONCE(core->open))
		return;
	WRITE_ONCE(core->inside, true);
	smp_mb(); /* either we see it closed, or insula_shared_core_stop() sees us inside */
	if (!core->entered) {
		core->entry_tsc = insula_processor_tsc();
		smp_store_release(&core->entered, true); /* after the time of entry */
	}
	while (READ_ONCE(core->open) && shared_core_enter(core))
		;
	smp_store_release(&core->inside, false); /* its memory may be reused from here on */
	shared_core_ring_again(core);
	if (READ_ONCE(core->open))
		shared_core_arm_entry(core);
	else
		shared_core_report_fault(core);
}

/* If the kernel runs, it has been left for this, and will be entered again at once. */
static enum hrtimer_restart shared_core_due(struct hrtimer *timer)
{
	struct insula_shared_core_state *core =
		container_of(timer, struct insula_shared_core_state, timer);

	core->armed_ns = U64_MAX;
	WRITE_ONCE(core->core_switch.shared->armed, U64_MAX);
	if (!core->inside && READ_ONCE(core->open))
		insula_start_interrupt(core->apic_id, core->vector);
	return HRTIMER_NORESTART;
}

/* Have the next NMI end the kernel, whatever it is doing, and send it. */
static void shared_core_abandon(struct insula_shared_core_state *core)
{
	pr_warn("the kernel that shares cpu %u does not leave it: interrupting it for good\n",
		core->cpu);
	WRITE_ONCE(core->open, false);
	WRITE_ONCE(core->core_switch.own_nmis, 1);
	WRITE_ONCE(core->core_switch.shared->abandon, 1);
	smp_mb(); /* before the NMI, which looks at it */
	if (core->by_nmi)
		insula_shared_core_nmi_send(core);
	else
		insula_start_nmi(core->apic_id);
}

static void shared_core_watch_next(struct insula_shared_core_state *core)
{
	core->watch.expires = jiffies + WATCH_INTERVAL;
	add_timer_on(&core->watch, SHARED_CORE_WATCH_CPU);
}

static void shared_core_watch(struct timer_list *timer)
{
	struct insula_shared_core_state *core =
		container_of(timer, struct insula_shared_core_state, watch);
	u64 entries = READ_ONCE(core->entries);

	if (!READ_ONCE(core->open))
		return;
	if (!READ_ONCE(core->inside) || entries != core->watched_entries) {
		core->watched_entries = entries;
		core->watched_since = jiffies;
	} else if (time_after(jiffies, core->watched_since + STOP_TIMEOUT)) {
		shared_core_abandon(core);
		return;
	}
	shared_core_watch_next(core);
}

/* Callers of create and destroy hold a lock. */
static struct insula_shared_core_state *shared_core_of(u32 cpu)
{
	u32 i;

	for (i = 0; i < SHARED_CORES_MAX; i++)
		if (shared_cores[i].used && shared_cores[i].cpu == cpu)
			return &shared_cores[i];
	return NULL;
}

static struct insula_shared_core_state *shared_core_unused(void)
{
	u32 i;

	for (i = 0; i < SHARED_CORES_MAX; i++)
		if (!shared_cores[i].used)
			return &shared_cores[i];
	return NULL;
}

static int shared_core_create_doorbell(struct insula_shared_core_state *core)
{
	int answer;

	core->doorbell = (struct insula_doorbell) { .rung = shared_core_rung };
	answer = insula_doorbell_create(&core->doorbell);
	if (answer)
		return answer;
	answer = insula_doorbell_pin(&core->doorbell, core->cpu);
	if (answer < 0) {
		insula_doorbell_destroy(&core->doorbell);
		return answer;
	}
	core->vector = answer;
	return 0;
}

static void shared_core_destroy_doorbell(struct insula_shared_core_state *core)
{
	insula_doorbell_destroy(&core->doorbell);
	hrtimer_cancel(&core->timer);
}

/* Once its page is there. */
static int shared_core_create_entries(struct insula_shared_core_state *core)
{
	int err = shared_core_create_doorbell(core);

	if (err || !core->by_nmi)
		return err;
	err = insula_shared_core_nmi_init(core);
	if (err)
		shared_core_destroy_doorbell(core);
	return err;
}

int insula_shared_core_create(u32 cpu, u32 percent, bool by_nmi)
{
	struct insula_shared_core_state *core = shared_core_unused();
	int err = insula_core_switch_supported();

	if (err)
		return err;
	if (!core)
		return -EBUSY;
	*core = (struct insula_shared_core_state) {
		.cpu = cpu,
		.apic_id = insula_processor_apic_id(cpu),
		.percent = percent,
		.by_nmi = by_nmi,
		.armed_ns = U64_MAX,
	};
	insula_hrtimer_setup(&core->timer, shared_core_due);
	timer_setup(&core->watch, shared_core_watch, TIMER_PINNED);
	err = insula_core_switch_init(&core->core_switch, shared_pages[core - shared_cores], cpu);
	if (err)
		return err;
	err = shared_core_create_entries(core);
	if (err) {
		insula_core_switch_exit(&core->core_switch);
		return err;
	}
	smp_store_release(&core->used, true); /* all else is filled in */
	return 0;
}

void insula_shared_core_destroy(u32 cpu)
{
	struct insula_shared_core_state *core = shared_core_of(cpu);

	WRITE_ONCE(core->used, false);
	if (core->by_nmi)
		insula_shared_core_nmi_exit(core);
	shared_core_destroy_doorbell(core);
	insula_timer_delete_sync(&core->watch);
	insula_core_switch_exit(&core->core_switch);
}

struct insula_shared_core_state *insula_shared_core_find(u32 apic_id)
{
	u32 i;

	for (i = 0; i < SHARED_CORES_MAX; i++)
		/* What is found has been filled in. */
		if (smp_load_acquire(&shared_cores[i].used) && shared_cores[i].apic_id == apic_id)
			return &shared_cores[i];
	return NULL;
}

int insula_shared_core_start(struct insula_shared_core_state *core,
			     const struct insula_entry *entry, u64 *tsc)
{
	unsigned long deadline = jiffies + START_TIMEOUT;

	insula_timer_delete_sync(&core->watch); /* of a kernel that has ended by itself */
	if (core->by_nmi)
		insula_shared_core_nmi_stop(core);
	core->entry = *entry;
	insula_core_switch_reset(&core->core_switch, entry, core->vector);
	core->armed_ns = U64_MAX;
	core->entered = false;
	core->unfinished = false;
	WRITE_ONCE(core->nmi.rung, false);
	core->watched_since = jiffies;
	smp_store_release(&core->open, true); /* all above is for its entry */
	shared_core_watch_next(core);
	insula_start_interrupt(core->apic_id, core->vector);
	while (!smp_load_acquire(&core->entered)) { /* before the time of entry */
		if (time_after(jiffies, deadline)) {
			insula_shared_core_stop(core);
			return -ETIMEDOUT;
		}
		usleep_range(POLL_US, 2 * POLL_US);
	}
	if (core->by_nmi)
		insula_shared_core_nmi_start(core);
	*tsc = core->entry_tsc;
	return 0;
}

/* By an interrupt of the base: for the kernel it is a reason to leave. */
void insula_shared_core_close(struct insula_shared_core_state *core)
{
	WRITE_ONCE(core->open, false);
	smp_mb(); /* either it is not entered any more, or we see it inside */
	if (READ_ONCE(core->inside))
		insula_start_interrupt(core->apic_id, RESCHEDULE_VECTOR);
}

static bool shared_core_wait(const struct insula_shared_core_state *core)
{
	unsigned long deadline = jiffies + STOP_TIMEOUT;

	while (smp_load_acquire(&core->inside)) { /* before its memory is reused */
		if (time_after(jiffies, deadline))
			return false;
		usleep_range(POLL_US, 2 * POLL_US);
	}
	return true;
}

int insula_shared_core_stop(struct insula_shared_core_state *core)
{
	bool left;

	insula_shared_core_close(core);
	left = shared_core_wait(core);
	if (!left) {
		shared_core_abandon(core);
		left = shared_core_wait(core);
	}
	insula_timer_delete_sync(&core->watch);
	if (core->by_nmi)
		insula_shared_core_nmi_stop(core);
	if (!left)
		return -ETIMEDOUT;
	hrtimer_cancel(&core->timer);
	return 0;
}

void insula_shared_cores_abandon(void)
{
	u32 i;

	for (i = 0; i < SHARED_CORES_MAX; i++) {
		if (!smp_load_acquire(&shared_cores[i].used)) /* its page is there by then */
			continue;
		WRITE_ONCE(shared_cores[i].open, false);
		WRITE_ONCE(shared_cores[i].core_switch.shared->abandon, 1);
	}
}

static void shared_core_ring(struct insula_shared_core_state *core)
{
	if (core->by_nmi)
		insula_shared_core_nmi_send(core);
	else
		insula_start_interrupt(core->apic_id, core->vector);
}

bool insula_shared_core_ring(u32 apic_id, u8 vector)
{
	struct insula_shared_core_state *core;

	if (apic_id & INSULA_MONITOR_SHARE_ID) {
		insula_monitor_share_ring(apic_id);
		return true;
	}
	if (!insula_shared_cores_by_nmi())
		return false;
	core = insula_shared_core_find(apic_id);
	if (!core || core->vector != vector)
		return false;
	shared_core_ring(core);
	return true;
}

void insula_shared_core_interrupt(struct insula_shared_core_state *core, u8 vector)
{
	set_bit(vector, (unsigned long *)core->core_switch.shared->pending);
	shared_core_ring(core);
}
