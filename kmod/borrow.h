/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_BORROW_H
#define INSULA_BORROW_H

#include <linux/types.h>

/* In a node. Without the channel that it needs there is simply nothing lent. */
int insula_borrow_init(void);
void insula_borrow_exit(void);

/* INSULA_BORROW, its argument in user space: answers a descriptor. */
int insula_borrow(void __user *argument);

#endif
