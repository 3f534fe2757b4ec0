/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_CLEAR_H
#define INSULA_CLEAR_H

#include "insula_module.h"

int insula_clear_init(void);
void insula_clear_exit(void);

/* Clear whole pages of the base's direct map. Sleeps. */
void insula_clear(phys_addr_t start, u64 size);

#endif
