/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * State of a shared core, for shared_core.c, where its kernel is entered by interrupts,
 * shared_core_nmi.c, where it is entered by NMIs, and shared_core_time.c.
 */
#ifndef INSULA_SHARED_CORE_INTERNAL_H
#define INSULA_SHARED_CORE_INTERNAL_H

#include <linux/hrtimer.h>
#include <linux/timer.h>
#include <linux/types.h>

#include "arch/x86/core_switch.h"
#include "arch/x86/doorbell.h"
#include "arch/x86/start.h"

/* The kernel's share is of this. */
#define SHARED_CORE_PERIOD_NS	(10 * NSEC_PER_MSEC)
/* A timeout is not looked at more often: the base gets something done in between. */
#define SHARED_CORE_TIMEOUT_MIN_NS	(20 * NSEC_PER_USEC)
/* Never shared, so its timers fire whatever a kernel does. */
#define SHARED_CORE_WATCH_CPU	0

/* Of a core whose kernel is entered by NMIs, too. */
struct insula_shared_core_nmi {
	struct hrtimer clock;		/* of another core */
	u32 timer_khz;			/* of the local APIC's timer; 0: it takes deadlines */
	u64 extended_enabled;		/* XCR0 of this kernel */
	atomic_t unclaimed;		/* NMIs sent that may still come */
	bool rung;			/* and the kernel has not been entered since */
	/* Used by the core only, in interrupt and NMI handlers. */
	bool postponed;			/* to an interrupt, which has not come since */
	u64 deferred[4];		/* vectors taken while this kernel had interrupts off */
};

struct insula_shared_core_state {
	struct insula_core_switch core_switch;
	struct insula_doorbell doorbell;
	struct hrtimer timer;
	struct timer_list watch;
	unsigned long watched_since;
	u64 watched_entries;
	struct insula_entry entry;
	u32 cpu;
	u32 apic_id;
	u32 percent;
	u8 vector;
	bool by_nmi;
	bool used;
	bool open;			/* the kernel may be entered */
	bool entered;			/* it has been, since its start */
	u64 entry_tsc;
	/*
	 * Used by the core's own interrupt handlers only, which are not interrupted, and by its NMI
	 * handler while the kernel does not run; the last three are read by all.
	 */
	u64 armed_ns;			/* when the timer fires; U64_MAX: it is not armed */
	u64 period_start_ns;
	u64 spent_ns;			/* in this period */
	bool unfinished;		/* the kernel was not idle when it left */
	bool inside;			/* the kernel runs; read by all */
	u64 entries;			/* read by all */
	struct insula_shared_core_nmi nmi;
};

/* The kernel's share of a period. */
u64 insula_shared_core_share_ns(const struct insula_shared_core_state *core);

/* How much of its share the kernel has left in this period. Any core; may be off if not its own. */
u64 insula_shared_core_left_ns(const struct insula_shared_core_state *core, u64 now_ns);

/*
 * Account for a run of the kernel since then: however long it was, this kernel then has the core
 * for the rest of a period.
 */
void insula_shared_core_account(struct insula_shared_core_state *core, u64 began_ns);

/* Time until the kernel wants to be entered, negative once that is past. S64_MAX: when rung. */
s64 insula_shared_core_wait_ns(const struct insula_shared_core_state *core);

/* The same as a time to look after it. U64_MAX: when it is rung. */
u64 insula_shared_core_deadline_ns(const struct insula_shared_core_state *core, u64 now_ns);

/*
 * Run the kernel once, since `began_ns`, and account for it. Returns INSULA_LEAVE_*; what it has
 * taken is still to be delivered. In an interrupt or NMI handler on the core.
 */
u64 insula_shared_core_run(struct insula_shared_core_state *core, u64 began_ns);

/* Whether any core's kernel is entered by NMIs. Any context. */
bool insula_shared_cores_by_nmi(void);

/* Prepare a core to be entered by NMIs. -EOPNOTSUPP: what is in the way is logged. Sleeps. */
int insula_shared_core_nmi_init(struct insula_shared_core_state *core);

/* Undo that: no kernel is open there. Waits for the core to take its interrupts. Sleeps. */
void insula_shared_core_nmi_exit(struct insula_shared_core_state *core);

/* The kernel is open: have another core enter it when it wants. Sleeps. */
void insula_shared_core_nmi_start(struct insula_shared_core_state *core);

/* End that. Sleeps. */
void insula_shared_core_nmi_stop(struct insula_shared_core_state *core);

/* Enter the kernel, or have it leave and be entered again, as soon as the core takes an NMI. */
void insula_shared_core_nmi_send(struct insula_shared_core_state *core);

/*
 * On the core, with interrupts off: have the interrupts come again that the kernel took while this
 * one had them off.
 */
void insula_shared_core_nmi_replay(struct insula_shared_core_state *core);

#endif
