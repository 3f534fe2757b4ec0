// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lookup of the only unexported symbol that the module needs: `real_mode_header`, the pointer to
 * the base's real-mode code. Only its address is needed: no unexported function is called (a
 * call could trap where indirect branch tracking has sealed the function).
 */
#include <linux/io.h>
#include <linux/kprobes.h>
#include <linux/mm.h>

#include "symbols.h"

/*
 * Registering a kprobe on data fails (kernel/kprobes.c, check_kprobe_address_safe()), but has
 * looked up the symbol's address by then.
 */
static void *symbol_address(const char *name)
{
	struct kprobe probe = { .symbol_name = name };

	if (!register_kprobe(&probe)) {
		unregister_kprobe(&probe);
		return NULL;
	}
	return probe.addr;
}

int insula_base_trampoline(phys_addr_t *address)
{
	void **header = symbol_address("real_mode_header");

	if (!header || !virt_addr_valid(*header))
		return -ENOENT;
	*address = virt_to_phys(*header);
	return *address < SZ_1M ? 0 : -ENOENT;
}
