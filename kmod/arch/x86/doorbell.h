/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_DOORBELL_H
#define INSULA_DOORBELL_H

#include <linux/timer.h>
#include <linux/types.h>

/* An interrupt of ours that another kernel sends. */
struct insula_doorbell {
	/* It has been rung, perhaps for nothing. In interrupt. */
	void (*rung)(struct insula_doorbell *doorbell);
	unsigned int irq;
	u64 *place;		/* where its word is published, or NULL */
	struct timer_list echo;
};

int insula_doorbells_init(void);
void insula_doorbells_exit(void);

/* Allocate its interrupt; `rung` has been set. It is published nowhere yet. Sleeps. */
int insula_doorbell_create(struct insula_doorbell *doorbell);

/* Free it. Nobody rings it any more. Sleeps. */
void insula_doorbell_destroy(struct insula_doorbell *doorbell);

/* Keep its word at `place` up to date from now on, or no more if NULL. */
void insula_doorbell_publish(struct insula_doorbell *doorbell, u64 *place);

/* What a word that another kernel has published says. Of no use if false. */
bool insula_doorbell_read(u64 word, u32 *apic_id, u8 *vector);

#endif
