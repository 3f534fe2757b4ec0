/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_SYMBOLS_H
#define INSULA_SYMBOLS_H

#include <linux/types.h>

/*
 * Where the base keeps the code with which it starts its own cores, below 1 MiB.
 * Not exported, and not to be overwritten. Fails with -ENOENT if not found.
 */
int insula_base_trampoline(phys_addr_t *address);

#endif
