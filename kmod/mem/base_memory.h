/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_BASE_MEMORY_H
#define INSULA_BASE_MEMORY_H

/* INSULA_BASE_MEMORY: a descriptor, or -EPERM. */
int insula_base_memory_open(void);

#endif
