// SPDX-License-Identifier: GPL-2.0-only
/*
 * Interrupts of the PCI functions of confined nodes.
 *
 * A device interrupts by a write to an address that names a core and a vector (MSI). A kernel that
 * programs its table of messages, or its DMA, could interrupt any core: only an IOMMU that remaps
 * interrupts prevents that, and lets the device send those alone that the base's kernel has set up
 * for it. So the base gets them, and sends each on to the core and vector that the node's kernel
 * has written to its table, which is a page of memory here: nobody has to be told of changes.
 *
 * A message that the node has masked is kept, and looked at again until it is unmasked.
 *
 * Source: PCI Local Bus Specification 3.0, section 6.8.2; Intel SDM volume 3, section 11.11.
 */
#include "device/relay.h"

#include <linux/bitops.h>
#include <linux/err.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/timer.h>

#include "arch/x86/start.h"
#include "compat/timer.h"
#include "device/claim.h"
#include "insula_monitor.h"

/* Fields of a message. */
#define MESSAGE_MASKED		BIT(0)
#define ADDRESS_MASK		0xfff00004U	/* and the mode of the destination: physical is 0 */
#define ADDRESS_BASE		0xfee00000U
#define ADDRESS_TARGET_SHIFT	12
#define ADDRESS_TARGET_MASK	0xffU
#define DATA_VECTOR_MASK	0xffU
/* Mode of delivery: fixed, or to the one with the lowest priority, of one. */
#define DATA_MODE_MASK		0x600U
/* Lower ones are exceptions. */
#define VECTOR_MIN		16

struct relay_line {
	struct insula_relay *relay;
	u32 index;
};

struct insula_relay {
	struct pci_dev *function;
	u32 count;
	struct insula_monitor_areas areas;	/* before `table` */
	const struct insula_message *table;	/* NULL: send nothing */
	unsigned long pending;			/* masked messages, one bit each */
	struct timer_list retry;
	struct relay_line lines[INSULA_FUNCTION_MESSAGES];
};

static_assert(INSULA_FUNCTION_MESSAGES <= BITS_PER_LONG);

/* A core that leaves the node is disowned before, and not returned within an RCU section. */
static bool relay_owns(const struct insula_monitor_areas *areas, u32 apic_id)
{
	const struct insula_monitor_core *area;
	u32 i;

	for (i = 0; i < areas->count; i++) {
		area = phys_to_virt(areas->start + (u64)i * INSULA_MONITOR_CORE_SIZE);
		if (READ_ONCE(area->apic_id) == apic_id)
			return READ_ONCE(area->owned);
	}
	return false;
}

/* What the node cannot receive is lost, as a device's write to any other address. */
static void relay_send(const struct insula_relay *relay, const struct insula_message *message)
{
	u32 address = READ_ONCE(message->address), data = READ_ONCE(message->data);
	u32 target = address >> ADDRESS_TARGET_SHIFT & ADDRESS_TARGET_MASK;
	u8 vector = data & DATA_VECTOR_MASK;

	if ((address & ADDRESS_MASK) != ADDRESS_BASE || READ_ONCE(message->address_high) ||
	    data & DATA_MODE_MASK || vector < VECTOR_MIN)
		return;
	if (relay_owns(&relay->areas, target))
		insula_start_interrupt(target, vector);
}

/* Send a message on, or keep it. Returns whether it is kept. */
static bool relay_pass(struct insula_relay *relay, u32 index)
{
	const struct insula_message *table;
	bool kept = false;

	rcu_read_lock();
	table = smp_load_acquire(&relay->table);	/* pairs with insula_relay_connect() */
	if (table)
		kept = READ_ONCE(table[index].control) & MESSAGE_MASKED;
	if (table && !kept)
		relay_send(relay, &table[index]);
	rcu_read_unlock();
	if (kept)
		set_bit(index, &relay->pending);
	return kept;
}

static irqreturn_t relay_handle(int irq, void *data)
{
	const struct relay_line *line = data;

	if (relay_pass(line->relay, line->index))
		mod_timer(&line->relay->retry, jiffies + 1);
	return IRQ_HANDLED;
}

static void relay_retry(struct timer_list *timer)
{
	struct insula_relay *relay = container_of(timer, struct insula_relay, retry);
	bool kept = false;
	u32 i;

	for (i = 0; i < relay->count; i++)
		if (test_and_clear_bit(i, &relay->pending))
			kept |= relay_pass(relay, i);
	if (kept)
		mod_timer(&relay->retry, jiffies + 1);
}

static void relay_free_lines(struct insula_relay *relay, u32 count)
{
	while (count--)
		free_irq(pci_irq_vector(relay->function, count), &relay->lines[count]);
}

static int relay_request_lines(struct insula_relay *relay)
{
	int err;
	u32 i;

	for (i = 0; i < relay->count; i++) {
		relay->lines[i] = (struct relay_line) { relay, i };
		err = request_irq(pci_irq_vector(relay->function, i), relay_handle, IRQF_NO_THREAD,
				  INSULA_DEVICE_DRIVER, &relay->lines[i]);
		if (err) {
			relay_free_lines(relay, i);
			return err;
		}
	}
	return 0;
}

struct insula_relay *insula_relay_create(struct pci_dev *function)
{
	int err, count = pci_msix_vec_count(function);
	struct insula_relay *relay;

	if (count < 0)
		return ERR_PTR(-EOPNOTSUPP);
	count = min(count, INSULA_FUNCTION_MESSAGES);
	relay = kzalloc(sizeof(*relay), GFP_KERNEL);
	if (!relay)
		return ERR_PTR(-ENOMEM);
	relay->function = function;
	relay->count = count;
	timer_setup(&relay->retry, relay_retry, 0);
	err = pci_alloc_irq_vectors(function, count, count, PCI_IRQ_MSIX);
	if (err < 0)
		goto free;
	err = relay_request_lines(relay);
	if (!err)
		return relay;
	pci_free_irq_vectors(function);
free:
	kfree(relay);
	return ERR_PTR(err);
}

void insula_relay_destroy(struct insula_relay *relay)
{
	if (!relay)
		return;
	relay_free_lines(relay, relay->count);
	insula_timer_delete_sync(&relay->retry);
	pci_free_irq_vectors(relay->function);
	kfree(relay);
}

u32 insula_relay_count(const struct insula_relay *relay)
{
	return relay->count;
}

void insula_relay_connect(struct insula_relay *relay, const struct insula_relay_target *target)
{
	relay->areas = target->areas;
	smp_store_release(&relay->table, target->table); /* after the areas */
}

void insula_relay_disconnect(struct insula_relay *relay)
{
	if (relay)
		WRITE_ONCE(relay->table, NULL);
}
