/* SPDX-License-Identifier: GPL-2.0-only */
/* Differences between kernels in moving an interrupt to another core. */
#ifndef INSULA_COMPAT_IRQ_H
#define INSULA_COMPAT_IRQ_H

#include <linux/irq.h>

/*
 * Allow an interrupt to be moved at any time, not only on its next occurrence. The default from
 * 6.15 on ("genirq: Remove IRQ_MOVE_PCNTXT and related code").
 */
static inline void insula_irq_allow_move(unsigned int irq)
{
#ifdef INSULA_HAS_IRQ_MOVE_PCNTXT
	irq_set_status_flags(irq, IRQ_MOVE_PCNTXT);
#endif
}

#endif
