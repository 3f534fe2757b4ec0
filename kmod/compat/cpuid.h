/* SPDX-License-Identifier: GPL-2.0-only */
/* cpuid_eax() and the like. */
#ifndef INSULA_COMPAT_CPUID_H
#define INSULA_COMPAT_CPUID_H

/* 6.16, "x86/cpuid: Set <asm/cpuid/api.h> as the main CPUID header" */
#ifdef INSULA_HAS_CPUID_API
#include <asm/cpuid/api.h>
#else
#include <asm/processor.h>
#endif

#endif
