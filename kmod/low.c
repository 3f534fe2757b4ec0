// SPDX-License-Identifier: GPL-2.0-only
/*
 * The firmware's RAM below 640 KiB. A core that is reset begins in real mode, so
 * whoever starts one needs a page here: we for a node's first core, a node for
 * its others. Linux puts its own such code here and then leaves the rest alone
 * (arch/x86/realmode/init.c reserves all of the first megabyte), so it is ours
 * to use, with its content put back afterwards.
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
#include "low.h"

/* The first 64 KiB are the firmware's data and what some firmware corrupts. */
#define LOW_FIRST	(0x10000 >> PAGE_SHIFT)
#define LOW_END		(0xa0000 >> PAGE_SHIFT)
/* More than Linux's real-mode code takes (about 28 KiB). */
#define BASE_REALMODE	0x10000
/* The firmware's words: where its extended data begins, in 16 bytes, and memory ends, in KiB. */
#define BIOS_EXTENDED	0x40e
#define BIOS_MEMORY_KIB	0x413
/* Outside of these bounds they are not believed, as by Linux (arch/x86/kernel/ebda.c). */
#define BIOS_START_MIN	0x20000
#define BIOS_START_MAX	0x9f000

static struct {
	struct mutex lock;	/* all below */
	DECLARE_BITMAP(usable, LOW_END);
	DECLARE_BITMAP(taken, LOW_END);
	void *saved[LOW_END];	/* a page's content while it is taken */
} low = {
	.lock = __MUTEX_INITIALIZER(low.lock),
};

/* RAM that Linux has reserved for good, hence never handed out by its allocator. */
static bool unused_ram(unsigned long pfn)
{
	return page_is_ram(pfn) && pfn_valid(pfn) && PageReserved(pfn_to_page(pfn));
}

static u64 bios_word(phys_addr_t at)
{
	return get_unaligned((const u16 *)phys_to_virt(at));
}

static phys_addr_t plausible(u64 start)
{
	return start >= BIOS_START_MIN && start < BIOS_START_MAX ? start : BIOS_START_MAX;
}

/*
 * Where the firmware's extended data may begin: some firmware keeps it in what its memory map
 * calls RAM, so Linux goes by its older words, too (reserve_bios_regions()).
 */
static unsigned long bios_start(void)
{
	return PHYS_PFN(min(plausible(bios_word(BIOS_MEMORY_KIB) << 10),
			    plausible(bios_word(BIOS_EXTENDED) << 4)));
}

int insula_low_init(void)
{
	unsigned long end = bios_start();
	phys_addr_t realmode;
	unsigned long pfn;
	int err;

	err = insula_base_trampoline(&realmode);
	if (err) {
		pr_err("cannot find the base's own real-mode code (real_mode_header)\n");
		return err;
	}
	for (pfn = LOW_FIRST; pfn < end; pfn++) {
		if (PFN_PHYS(pfn) + PAGE_SIZE > realmode &&
		    PFN_PHYS(pfn) < realmode + BASE_REALMODE)
			continue;
		if (unused_ram(pfn))
			__set_bit(pfn, low.usable);
	}
	return 0;
}

void insula_low_exit(void)
{
	WARN_ON(!bitmap_empty(low.taken, LOW_END));
}

static bool page_free(unsigned long pfn)
{
	return test_bit(pfn, low.usable) && !test_bit(pfn, low.taken);
}

static bool stretch_free(unsigned long pfn, unsigned long count)
{
	unsigned long i;

	for (i = 0; i < count; i++)
		if (!page_free(pfn + i))
			return false;
	return true;
}

/* First page of a free stretch of `count` pages in [first, end), or LOW_END. */
static unsigned long find_stretch(unsigned long first, unsigned long end,
				  unsigned long count, unsigned int flags)
{
	unsigned long places, i, pfn;

	if (end < first + count)
		return LOW_END;
	places = end - first - count + 1;
	for (i = 0; i < places; i++) {
		pfn = flags & INSULA_LOW_FROM_TOP ? first + places - 1 - i : first + i;
		if (stretch_free(pfn, count))
			return pfn;
	}
	return LOW_END;
}

static void put_back(unsigned long pfn)
{
	lockdep_assert_held(&low.lock);
	memcpy(pfn_to_kaddr(pfn), low.saved[pfn], PAGE_SIZE);
	kfree(low.saved[pfn]);
	low.saved[pfn] = NULL;
	__clear_bit(pfn, low.taken);
}

static int take_page(unsigned long pfn)
{
	lockdep_assert_held(&low.lock);
	low.saved[pfn] = kmemdup(pfn_to_kaddr(pfn), PAGE_SIZE, GFP_KERNEL);
	if (!low.saved[pfn])
		return -ENOMEM;
	__set_bit(pfn, low.taken);
	clear_page(pfn_to_kaddr(pfn));
	return 0;
}

int insula_low_take(u64 size, u64 min, u64 max, unsigned int flags, phys_addr_t *start)
{
	unsigned long first = max_t(u64, PFN_UP(min), LOW_FIRST);
	unsigned long end = min_t(u64, PFN_DOWN(max), LOW_END);
	unsigned long count = PFN_UP(size), pfn, i;
	int err = -ENOMEM;

	mutex_lock(&low.lock);
	pfn = size <= SZ_1M ? find_stretch(first, end, count, flags) : LOW_END;
	if (pfn == LOW_END)
		goto out;
	for (i = 0; i < count; i++) {
		err = take_page(pfn + i);
		if (err)
			goto undo;
	}
	*start = PFN_PHYS(pfn);
	goto out;
undo:
	while (i--)
		put_back(pfn + i);
out:
	mutex_unlock(&low.lock);
	return err;
}

void insula_low_return(phys_addr_t start, u64 size)
{
	unsigned long pfn;

	mutex_lock(&low.lock);
	for (pfn = PFN_DOWN(start); pfn < PFN_UP(start + size); pfn++)
		put_back(pfn);
	mutex_unlock(&low.lock);
}

void insula_low_count(u64 *total, u64 *free)
{
	mutex_lock(&low.lock);
	*total = (u64)bitmap_weight(low.usable, LOW_END) << PAGE_SHIFT;
	*free = *total - ((u64)bitmap_weight(low.taken, LOW_END) << PAGE_SHIFT);
	mutex_unlock(&low.lock);
}
