// SPDX-License-Identifier: GPL-2.0-only
/*
 * Doorbells: interrupts of this kernel sent by another kernel's local APIC.
 *
 * They belong to an IRQ domain of ours below the vector domain, so each is an ordinary
 * interrupt with a vector, an affinity and a line in /proc/interrupts, and can be migrated.
 * Then its word, which has vector and target, must follow: the irq_set_affinity callback
 * rewrites it. The old vector works until the first interrupt by the new one; a ring in flight
 * then is lost (arch/x86/kernel/apic/vector.c), and so is one to a core that has gone offline.
 * Two measures make up for this: some time after each move the doorbell is treated as rung (the
 * echo), and the ringing side rechecks the word after sending, and rings again if it has
 * changed. So a ring sent before the move, or less than ECHO_DELAY_MS after it, is covered by
 * the echo, and a later one is repeated, however long the ringing side was delayed in between.
 */
#include "insula_module.h"

#include <linux/build_bug.h>
#include <linux/interrupt.h>
#include <linux/irq.h>
#include <linux/irqdomain.h>
#include <linux/jiffies.h>
#include <linux/spinlock.h>

#include <asm/apic.h>
#include <asm/hw_irq.h>
#include <asm/irq_vectors.h>
#include <asm/irqdomain.h>
#include <asm/smp.h>

#include "arch/x86/doorbell.h"
#include "arch/x86/shared_core.h"
#include "arch/x86/start.h"
#include "compat/irq.h"
#include "compat/timer.h"
#include "insula_channel.h"
#include "node/monitor_share.h"

/* Longer than the delivery of an interrupt takes. */
#define ECHO_DELAY_MS	20
/* Most repetitions of a ring while its word keeps changing: a hostile kernel never stops. */
#define RINGS_MAX	8

static struct {
	raw_spinlock_t lock;	/* words and `place`; taken with interrupts off */
	struct fwnode_handle *fwnode;
	struct irq_domain *domain;
} doorbells = {
	.lock = __RAW_SPIN_LOCK_UNLOCKED(doorbells.lock),
};

static u64 doorbell_word(const struct insula_doorbell *doorbell, struct irq_data *data)
{
	u32 cpu = cpumask_first(irq_data_get_effective_affinity_mask(data));
	u64 apic_id = per_cpu(x86_cpu_to_apicid, cpu);

	return INSULA_DOORBELL_VALID | doorbell->mark | apic_id << INSULA_DOORBELL_APIC_SHIFT |
	       irqd_cfg(data)->vector;
}

/* Lock held. The permit first: the other kernel may ring as soon as it sees the word. */
static void doorbell_write(struct insula_doorbell *doorbell, u64 word)
{
	lockdep_assert_held(&doorbells.lock);
	if (doorbell->permit) {
		WRITE_ONCE(*doorbell->permit, word);
		smp_wmb(); /* the word after the permit */
	}
	WRITE_ONCE(*doorbell->place, word);
}

static int doorbell_set_affinity(struct irq_data *data, const struct cpumask *mask, bool force)
{
	struct insula_doorbell *doorbell = irq_data_get_irq_chip_data(data);
	int answer = irq_chip_set_affinity_parent(data, mask, force);
	unsigned long flags;

	if (answer < 0)
		return answer;
	raw_spin_lock_irqsave(&doorbells.lock, flags);
	if (doorbell->place) {
		doorbell_write(doorbell, doorbell_word(doorbell, data));
		mod_timer(&doorbell->echo, jiffies + msecs_to_jiffies(ECHO_DELAY_MS));
	}
	raw_spin_unlock_irqrestore(&doorbells.lock, flags);
	return answer;
}

static struct irq_chip chip = {
	.name = "insula",
	.irq_ack = irq_chip_ack_parent,
	.irq_retrigger = irq_chip_retrigger_hierarchy,
	.irq_set_affinity = doorbell_set_affinity,
	.flags = IRQCHIP_SKIP_SET_WAKE,
};

static int doorbell_alloc(struct irq_domain *domain, unsigned int irq, unsigned int count,
			  void *doorbell)
{
	struct irq_alloc_info info = {};
	int err = irq_domain_alloc_irqs_parent(domain, irq, count, &info);

	if (err)
		return err;
	irq_domain_set_info(domain, irq, irq, &chip, doorbell, handle_edge_irq, NULL, NULL);
	insula_irq_allow_move(irq);
	return 0;
}

static const struct irq_domain_ops domain_ops = {
	.alloc = doorbell_alloc,
	.free = irq_domain_free_irqs_common,
};

int insula_doorbells_init(void)
{
	doorbells.fwnode = irq_domain_alloc_named_fwnode("insula");
	if (!doorbells.fwnode)
		return -ENOMEM;
	doorbells.domain = irq_domain_create_hierarchy(x86_vector_domain, 0, 0, doorbells.fwnode,
						       &domain_ops, NULL);
	if (doorbells.domain)
		return 0;
	irq_domain_free_fwnode(doorbells.fwnode);
	return -ENOMEM;
}

void insula_doorbells_exit(void)
{
	irq_domain_remove(doorbells.domain);
	irq_domain_free_fwnode(doorbells.fwnode);
}

static irqreturn_t doorbell_handle(int irq, void *doorbell)
{
	((struct insula_doorbell *)doorbell)->rung(doorbell);
	return IRQ_HANDLED;
}

static void doorbell_echo(struct timer_list *timer)
{
	struct insula_doorbell *doorbell = container_of(timer, struct insula_doorbell, echo);

	doorbell->rung(doorbell);
}

int insula_doorbell_create(struct insula_doorbell *doorbell)
{
	int irq, err;

	doorbell->place = NULL;
	timer_setup(&doorbell->echo, doorbell_echo, 0);
	irq = irq_domain_alloc_irqs(doorbells.domain, 1, NUMA_NO_NODE, doorbell);
	if (irq < 0)
		return irq;
	err = request_irq(irq, doorbell_handle, IRQF_NO_THREAD, "insula", doorbell);
	if (err) {
		irq_dispose_mapping(irq);
		return err;
	}
	doorbell->irq = irq;
	return 0;
}

int insula_doorbell_pin(struct insula_doorbell *doorbell, u32 cpu)
{
	int err = irq_set_affinity(doorbell->irq, cpumask_of(cpu));

	if (err)
		return err;
	irq_set_status_flags(doorbell->irq, IRQ_NO_BALANCING);
	return irqd_cfg(irq_get_irq_data(doorbell->irq))->vector;
}

int insula_doorbell_keep_off(struct insula_doorbell *doorbell, u32 cpu)
{
	cpumask_var_t others;
	int err;

	if (!zalloc_cpumask_var(&others, GFP_KERNEL))
		return -ENOMEM;
	cpumask_copy(others, cpu_online_mask);
	cpumask_clear_cpu(cpu, others);
	err = irq_set_affinity(doorbell->irq, others);
	if (!err)
		irq_set_status_flags(doorbell->irq, IRQ_NO_BALANCING);
	free_cpumask_var(others);
	return err;
}

void insula_doorbell_destroy(struct insula_doorbell *doorbell)
{
	insula_doorbell_publish(doorbell, NULL);
	free_irq(doorbell->irq, doorbell);
	irq_dispose_mapping(doorbell->irq);
	insula_timer_delete_sync(&doorbell->echo);
}

void insula_doorbell_publish(struct insula_doorbell *doorbell, u64 *place)
{
	unsigned long flags;

	raw_spin_lock_irqsave(&doorbells.lock, flags);
	if (doorbell->place)
		doorbell_write(doorbell, 0);
	doorbell->place = place;
	if (place)
		doorbell_write(doorbell,
			       doorbell_word(doorbell, irq_get_irq_data(doorbell->irq)));
	raw_spin_unlock_irqrestore(&doorbells.lock, flags);
}

/*
 * Whether Linux assigns a vector to device interrupts, like doorbells. Other vectors could stop a
 * core of Linux, or be taken for a system call.
 */
static bool doorbell_vector_valid(u8 vector)
{
	return vector >= FIRST_EXTERNAL_VECTOR && vector < FIRST_SYSTEM_VECTOR &&
	       vector != IA32_SYSCALL_VECTOR;
}

/* Find the core that the other kernel knows by this APIC id. False: it may not be rung. */
static bool doorbell_target(const struct insula_ringable *ringable, u32 *apic_id)
{
	u32 i;

	if (!ringable)
		return true;
	for (i = 0; i < ringable->count; i++)
		if (ringable->apic_ids[ringable->count + i] == *apic_id) {
			*apic_id = ringable->apic_ids[i];
			return true;
		}
	return false;
}

/* Else a copy would ring nobody. */
static_assert(!(INSULA_MONITOR_SHARE_ID & (INSULA_DOORBELL_FOREIGN >> INSULA_DOORBELL_APIC_SHIFT)));

static void doorbell_send(u64 word, const struct insula_ringable *ringable)
{
	u32 broadcast = x2apic_mode ? U32_MAX : U8_MAX;
	u32 apic_id = word >> INSULA_DOORBELL_APIC_SHIFT;
	u8 vector = word & INSULA_DOORBELL_VECTOR_MASK;

	if (!(word & INSULA_DOORBELL_VALID) || !doorbell_vector_valid(vector) ||
	    !doorbell_target(ringable, &apic_id))
		return;
	/* What `ringable` names is no broadcast: see monitor_share.h. */
	if (apic_id >= broadcast && !(ringable && apic_id & INSULA_MONITOR_SHARE_ID))
		return;
	if (!insula_shared_core_ring(apic_id, vector))
		insula_start_interrupt(apic_id, vector);
}

void insula_doorbell_ring(const u64 *place, const struct insula_ringable *ringable)
{
	u64 word, rung_by;
	int rings = 0;

	smp_mb(); /* publish what it is rung for before reading its word */
	word = READ_ONCE(*place);
	do {
		rung_by = word;
		doorbell_send(rung_by, ringable);
		smp_mb(); /* ring before checking whether the word has changed */
		word = READ_ONCE(*place);
	} while (word != rung_by && ++rings < RINGS_MAX);
}
