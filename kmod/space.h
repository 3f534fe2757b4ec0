/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_SPACE_H
#define INSULA_SPACE_H

#include "desks.h"

int insula_spaces_init(void);
void insula_spaces_exit(void);

/* INSULA_SPACE_CREATE, its argument in user space: answers a descriptor. */
int insula_space_create(struct insula_desks *desks, void __user *argument);

#endif
