// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reboot, suspend and panic of the base: its nodes are stopped first, since a core that keeps
 * running while another kernel takes over the machine means a hang or worse. Reboot, power-off
 * and kexec stop the nodes; suspend, which would lose them, is refused while a core is taken; a
 * panic resets their cores.
 *
 * A panic with a crash kernel loaded jumps to that kernel before it calls notifiers
 * (kernel/panic.c, unless the administrator sets crash_kexec_post_notifiers). Before that it
 * only stops the base's other cores, by a function of `smp_ops`, which is exported and
 * overridden at boot by guests of hypervisors. The module hooks that function while it is
 * loaded.
 */
#include "insula_module.h"

#include <linux/notifier.h>
#include <linux/panic_notifier.h>
#include <linux/reboot.h>
#include <linux/suspend.h>

#include "arch/x86/processor.h"
#include "cpu/core.h"
#include "device/device.h"
#include "node/base.h"
#include "node/node.h"

static int base_reboots(struct notifier_block *block, unsigned long action, void *data)
{
	insula_nodes_base_down();
	return NOTIFY_DONE;
}

static int base_sleeps(struct notifier_block *block, unsigned long action, void *data)
{
	if (action != PM_SUSPEND_PREPARE && action != PM_HIBERNATION_PREPARE)
		return NOTIFY_DONE;
	if (!insula_cores_any_taken())
		return NOTIFY_DONE;
	pr_warn("refusing to suspend: cores of nodes or the pool would be lost\n");
	return notifier_from_errno(-EBUSY);
}

/* Other cores may have been stopped anywhere: take no locks. */
static int base_panics(struct notifier_block *block, unsigned long action, void *data)
{
	insula_cores_close();
	insula_cores_reset_all();
	return NOTIFY_DONE;
}

/* Other cores still run, and one may be starting a node: reset again after they are stopped. */
static void base_crashes(void)
{
	insula_cores_close();
	insula_cores_reset_all();
	insula_devices_disable_dma_all();
	insula_processor_stop_others();
	insula_cores_reset_all();
}

static struct notifier_block reboot_block = { .notifier_call = base_reboots };
static struct notifier_block sleep_block = { .notifier_call = base_sleeps };
static struct notifier_block panic_block = { .notifier_call = base_panics };

int insula_base_init(void)
{
	int err = register_reboot_notifier(&reboot_block);

	if (err)
		return err;
	err = register_pm_notifier(&sleep_block);
	if (err) {
		unregister_reboot_notifier(&reboot_block);
		return err;
	}
	atomic_notifier_chain_register(&panic_notifier_list, &panic_block);
	insula_processor_hook_crash(base_crashes);
	return 0;
}

void insula_base_exit(void)
{
	insula_processor_unhook_crash();
	atomic_notifier_chain_unregister(&panic_notifier_list, &panic_block);
	unregister_pm_notifier(&sleep_block);
	unregister_reboot_notifier(&reboot_block);
}
