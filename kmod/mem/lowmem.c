// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lowmem: the firmware's RAM below 640 KiB. A core starts in real mode, so starting one needs a
 * page here: the module for a node's first core, a node for its others. Linux keeps its own
 * real-mode code here and leaves the rest unused (arch/x86/realmode/init.c reserves the whole
 * first megabyte), so the module may use it, and restores its content afterwards.
 */
#include "insula_module.h"

#include <linux/bitmap.h>
#include <linux/io.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/slab.h>

#include "arch/x86/symbols.h"
#include "compat/compat.h"
#include "mem/lowmem.h"

/* The first 64 KiB hold firmware data, and some firmware corrupts them. */
#define LOWMEM_FIRST	(0x10000 >> PAGE_SHIFT)
#define LOWMEM_END		(0xa0000 >> PAGE_SHIFT)
/* More than the size of Linux's real-mode code (about 28 KiB). */
#define BASE_REALMODE	0x10000
/* BIOS data area: segment of the extended BIOS data area, and size of base memory in KiB. */
#define BIOS_EXTENDED	0x40e
#define BIOS_MEMORY_KIB	0x413
/* Values outside these bounds are ignored, as by Linux (arch/x86/kernel/ebda.c). */
#define BIOS_START_MIN	0x20000
#define BIOS_START_MAX	0x9f000

static struct {
	struct mutex lock;	/* all below */
	DECLARE_BITMAP(usable, LOWMEM_END);
	DECLARE_BITMAP(allocated, LOWMEM_END);
	void *saved[LOWMEM_END];	/* content of allocated pages, to be restored */
} lowmem = {
	.lock = __MUTEX_INITIALIZER(lowmem.lock),
};

/* RAM that Linux has reserved, hence its allocator never hands out. */
static bool lowmem_is_unused_ram(unsigned long pfn)
{
	return page_is_ram(pfn) && pfn_valid(pfn) && PageReserved(pfn_to_page(pfn));
}

static u64 lowmem_bios_word(phys_addr_t at)
{
	return get_unaligned((const u16 *)phys_to_virt(at));
}

static phys_addr_t lowmem_bios_clamp(u64 start)
{
	return start >= BIOS_START_MIN && start < BIOS_START_MAX ? start : BIOS_START_MAX;
}

/*
 * Start of the extended BIOS data area: some firmware has it in what its memory map calls RAM,
 * so Linux reads these words, too (reserve_bios_regions()).
 */
static unsigned long lowmem_bios_start(void)
{
	return PHYS_PFN(min(lowmem_bios_clamp(lowmem_bios_word(BIOS_MEMORY_KIB) << 10),
			    lowmem_bios_clamp(lowmem_bios_word(BIOS_EXTENDED) << 4)));
}

int insula_lowmem_init(void)
{
	unsigned long end = lowmem_bios_start();
	phys_addr_t realmode;
	unsigned long pfn;
	int err;

	err = insula_base_trampoline(&realmode);
	if (err) {
		pr_err("cannot find the base's real-mode code (real_mode_header)\n");
		return err;
	}
	for (pfn = LOWMEM_FIRST; pfn < end; pfn++) {
		if (PFN_PHYS(pfn) + PAGE_SIZE > realmode &&
		    PFN_PHYS(pfn) < realmode + BASE_REALMODE)
			continue;
		if (lowmem_is_unused_ram(pfn))
			__set_bit(pfn, lowmem.usable);
	}
	return 0;
}

void insula_lowmem_exit(void)
{
	WARN_ON(!bitmap_empty(lowmem.allocated, LOWMEM_END));
}

static bool lowmem_page_is_free(unsigned long pfn)
{
	return test_bit(pfn, lowmem.usable) && !test_bit(pfn, lowmem.allocated);
}

static bool lowmem_range_is_free(unsigned long pfn, unsigned long count)
{
	unsigned long i;

	for (i = 0; i < count; i++)
		if (!lowmem_page_is_free(pfn + i))
			return false;
	return true;
}

/* First page of a free range of `count` pages in [first, end), or LOWMEM_END. */
static unsigned long lowmem_find_range(unsigned long first, unsigned long end,
				       unsigned long count, unsigned int flags)
{
	unsigned long places, i, pfn;

	if (end < first + count)
		return LOWMEM_END;
	places = end - first - count + 1;
	for (i = 0; i < places; i++) {
		pfn = flags & INSULA_LOWMEM_FROM_TOP ? first + places - 1 - i : first + i;
		if (lowmem_range_is_free(pfn, count))
			return pfn;
	}
	return LOWMEM_END;
}

static void lowmem_restore_page(unsigned long pfn)
{
	lockdep_assert_held(&lowmem.lock);
	memcpy(pfn_to_kaddr(pfn), lowmem.saved[pfn], PAGE_SIZE);
	kfree(lowmem.saved[pfn]);
	lowmem.saved[pfn] = NULL;
	__clear_bit(pfn, lowmem.allocated);
}

static int lowmem_take_page(unsigned long pfn)
{
	lockdep_assert_held(&lowmem.lock);
	lowmem.saved[pfn] = kmemdup(pfn_to_kaddr(pfn), PAGE_SIZE, GFP_KERNEL);
	if (!lowmem.saved[pfn])
		return -ENOMEM;
	__set_bit(pfn, lowmem.allocated);
	clear_page(pfn_to_kaddr(pfn));
	return 0;
}

int insula_lowmem_alloc(u64 size, u64 min, u64 max, unsigned int flags, phys_addr_t *start)
{
	unsigned long first = max_t(u64, PFN_UP(min), LOWMEM_FIRST);
	unsigned long end = min_t(u64, PFN_DOWN(max), LOWMEM_END);
	unsigned long count = PFN_UP(size), pfn, i;
	int err = -ENOMEM;

	mutex_lock(&lowmem.lock);
	pfn = size <= SZ_1M ? lowmem_find_range(first, end, count, flags) : LOWMEM_END;
	if (pfn == LOWMEM_END)
		goto out;
	for (i = 0; i < count; i++) {
		err = lowmem_take_page(pfn + i);
		if (err)
			goto undo;
	}
	*start = PFN_PHYS(pfn);
	goto out;
undo:
	while (i--)
		lowmem_restore_page(pfn + i);
out:
	mutex_unlock(&lowmem.lock);
	return err;
}

void insula_lowmem_free(phys_addr_t start, u64 size)
{
	unsigned long pfn;

	mutex_lock(&lowmem.lock);
	for (pfn = PFN_DOWN(start); pfn < PFN_UP(start + size); pfn++)
		lowmem_restore_page(pfn);
	mutex_unlock(&lowmem.lock);
}

void insula_lowmem_count(u64 *total, u64 *free)
{
	mutex_lock(&lowmem.lock);
	*total = (u64)bitmap_weight(lowmem.usable, LOWMEM_END) << PAGE_SHIFT;
	*free = *total - ((u64)bitmap_weight(lowmem.allocated, LOWMEM_END) << PAGE_SHIFT);
	mutex_unlock(&lowmem.lock);
}
