/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_GUEST_H
#define INSULA_GUEST_H

#include <linux/types.h>

struct insula_endpoint;

/* Whether this kernel is a node: its ACPI tables describe channels to a base. */
bool insula_guest_found(void);

int insula_guest_init(void);
void insula_guest_exit(void);

/*
 * Claim an endpoint for this kernel: see insula_endpoint_open(). ERR_PTR(-ENODEV): this is no
 * node.
 */
struct insula_endpoint *insula_guest_endpoint_open(u32 index);

/* INSULA_CHANNEL_OPEN with its argument in user space. */
int insula_guest_open(void __user *argument);

#endif
