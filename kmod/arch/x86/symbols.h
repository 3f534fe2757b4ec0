/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_SYMBOLS_H
#define INSULA_SYMBOLS_H

#include <linux/types.h>

/*
 * Physical address of the base's real-mode code below 1 MiB, which starts its own cores and must
 * not be overwritten. -ENOENT if not found.
 */
int insula_base_trampoline(phys_addr_t *address);

#endif
