// SPDX-License-Identifier: GPL-2.0-only
/*
 * When the base goes down, its nodes go first: a core that runs on while another
 * kernel takes over the machine would be a hang or worse. Reboot, power-off and
 * kexec stop the nodes; suspend, which would lose them, is refused while a core
 * is taken; a panic resets their cores.
 */
#include "insula_module.h"

#include <linux/notifier.h>
#include <linux/panic_notifier.h>
#include <linux/reboot.h>
#include <linux/suspend.h>

#include "base.h"
#include "core.h"
#include "node.h"
#include "watch.h"

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
	pr_warn("refusing to suspend: nodes or the pool hold cores, which would be lost\n");
	return notifier_from_errno(-EBUSY);
}

static int base_panics(struct notifier_block *block, unsigned long action, void *data)
{
	insula_watch_reset_all();
	return NOTIFY_DONE;
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
	return 0;
}

void insula_base_exit(void)
{
	atomic_notifier_chain_unregister(&panic_notifier_list, &panic_block);
	unregister_pm_notifier(&sleep_block);
	unregister_reboot_notifier(&reboot_block);
}
