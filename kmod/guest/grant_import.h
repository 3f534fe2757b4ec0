/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_GRANT_IMPORT_H
#define INSULA_GRANT_IMPORT_H

#include <linux/types.h>

/* In a node. Fails if the node has no channel for grants: then there are none. */
int insula_grant_import_init(void);
void insula_grant_import_exit(void);

/* INSULA_GRANT_IMPORT with its argument in user space: returns a descriptor. */
int insula_grant_import(void __user *argument);

#endif
