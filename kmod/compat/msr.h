/* SPDX-License-Identifier: GPL-2.0-only */
/* Model-specific registers of 64 bits. */
#ifndef INSULA_COMPAT_MSR_H
#define INSULA_COMPAT_MSR_H

#include <asm/msr.h>

/* 6.16, "x86/msr: Rename 'rdmsrl()' to 'rdmsrq()'" and those after it */
#ifndef rdmsrq
#define rdmsrq		rdmsrl
#define rdmsrq_safe	rdmsrl_safe
#define wrmsrq		wrmsrl
#define wrmsrq_safe	wrmsrl_safe
#endif

#endif
