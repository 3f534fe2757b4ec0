/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_RELAY_H
#define INSULA_RELAY_H

#include <linux/pci.h>
#include <linux/types.h>

#include "node/monitor_cores.h"

struct insula_message;
struct insula_relay;

/* Where a confined node says which interrupts it wants, and its cores. */
struct insula_relay_target {
	const struct insula_message *table;	/* in its monitor's memory */
	struct insula_monitor_areas areas;
};

/*
 * Take all messages of a function that is bound to our driver, at most INSULA_FUNCTION_MESSAGES, as
 * interrupts of the base. ERR_PTR. Sleeps.
 */
struct insula_relay *insula_relay_create(struct pci_dev *function);

/* Free them. NULL is allowed. Sleeps. */
void insula_relay_destroy(struct insula_relay *relay);

/* Number of messages. */
u32 insula_relay_count(const struct insula_relay *relay);

/* Send interrupts on from now on; what `target` names stays until they are freed. */
void insula_relay_connect(struct insula_relay *relay, const struct insula_relay_target *target);

/* Send nothing more: for sure after an RCU grace period. NULL is allowed. */
void insula_relay_disconnect(struct insula_relay *relay);

#endif
