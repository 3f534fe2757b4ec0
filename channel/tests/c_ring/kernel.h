/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Kernel definitions that kmod/channel/ring.c needs, for the host. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <errno.h>
#include <linux/types.h>

typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;

#define U16_MAX	UINT16_MAX
#define U32_MAX	UINT32_MAX
#define min_t(type, a, b)	((type)(a) < (type)(b) ? (type)(a) : (type)(b))

#define READ_ONCE(word)			__atomic_load_n(&(word), __ATOMIC_RELAXED)
#define WRITE_ONCE(word, value)		__atomic_store_n(&(word), value, __ATOMIC_RELAXED)
#define smp_load_acquire(word)		__atomic_load_n(word, __ATOMIC_ACQUIRE)
#define smp_store_release(word, value)	__atomic_store_n(word, value, __ATOMIC_RELEASE)
#define smp_mb()			__atomic_thread_fence(__ATOMIC_SEQ_CST)

#define EXPORT_SYMBOL_GPL(symbol)	_Static_assert(1, "")
