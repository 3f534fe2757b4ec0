/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Included first by every file of the module, for its messages' prefix and the
 * words that cross to user space.
 */
#ifndef INSULA_MODULE_H
#define INSULA_MODULE_H

#ifdef pr_fmt
#undef pr_fmt
#endif
#define pr_fmt(fmt) "insula: " fmt

#include <linux/printk.h>

#include "insula.h"

#endif
