// SPDX-License-Identifier: GPL-2.0-only
/*
 * The one unexported symbol that the module needs: `real_mode_header`, the
 * pointer to the base's own real-mode code. Only its *address* is needed, so
 * nothing unexported is ever called (a call could trap where indirect branch
 * tracking has sealed the function).
 */
#include <linux/io.h>
#include <linux/kprobes.h>
#include <linux/mm.h>

#include "symbols.h"

/*
 * A probe on data is refused (kernel/kprobes.c, check_kprobe_address_safe()),
 * but by then its name has been looked up and the address is in the probe.
 */
static void *address_of(const char *name)
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
	void **header = address_of("real_mode_header");

	if (!header || !virt_addr_valid(*header))
		return -ENOENT;
	*address = virt_to_phys(*header);
	return *address < SZ_1M ? 0 : -ENOENT;
}
