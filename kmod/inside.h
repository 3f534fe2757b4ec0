/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_INSIDE_H
#define INSULA_INSIDE_H

#include <linux/types.h>

struct insula_own_end;

/* Whether this kernel is a node: its ACPI tables name channels to a base. */
bool insula_inside_found(void);

int insula_inside_init(void);
void insula_inside_exit(void);

/*
 * Use an end in this kernel: see channel.h. -ENODEV: this is no node. -ENOENT: there is no
 * such channel. -EBUSY: a program has it open.
 */
int insula_inside_claim(struct insula_own_end *end, u32 index);

/* INSULA_CHANNEL_OPEN with its argument in user space. */
int insula_inside_open(void __user *argument);

#endif
