/* SPDX-License-Identifier: GPL-2.0-only */
/* Included first by every file of the module: prefix of its messages, and the ABI. */
#ifndef INSULA_MODULE_H
#define INSULA_MODULE_H

#ifdef pr_fmt
#undef pr_fmt
#endif
#define pr_fmt(fmt) "insula: " fmt

#include <linux/printk.h>

#include "insula.h"
#include "insula_mirror.h"
#include "insula_node.h"

#endif
