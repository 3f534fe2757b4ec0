// SPDX-License-Identifier: GPL-2.0-only
/*
 * When the base goes down, its nodes go first: a core that runs on while another
 * kernel takes over the machine would be a hang or worse. Reboot, power-off and
 * kexec stop the nodes; suspend, which would lose them, is refused while a core
 * is taken; a panic resets their cores.
 *
 * A panic with a crash kernel loaded jumps to that kernel before anybody is notified
 * (kernel/panic.c: unless crash_kexec_post_notifiers is set, which is the administrator's
 * to decide). All that it does before is to stop the base's other cores, by a function
 * of `smp_ops`, which is exported and written to by hypervisors' guests at boot. Ours
 * stands before it while the module is loaded.
 */
#include "insula_module.h"

#include <linux/notifier.h>
#include <linux/panic_notifier.h>
#include <linux/reboot.h>
#include <linux/suspend.h>

#include <asm/smp.h>

#include "base.h"
#include "core.h"
#include "device.h"
#include "node.h"

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

/* Other cores may have been stopped anywhere: no lock is taken from here on. */
static int base_panics(struct notifier_block *block, unsigned long action, void *data)
{
	insula_cores_close();
	insula_cores_reset_all();
	return NOTIFY_DONE;
}

static void (*crash_stop_other_cpus)(void);

/*
 * Other cores run still, and one of them may be starting a node: hence the second reset,
 * when they have been stopped.
 */
static void base_crashes(void)
{
	insula_cores_close();
	insula_cores_reset_all();
	insula_devices_silence_all();
	crash_stop_other_cpus();
	insula_cores_reset_all();
}

/* There is none in a kernel that cannot start another one. */
static void watch_crashes(void)
{
	crash_stop_other_cpus = smp_ops.crash_stop_other_cpus;
	if (crash_stop_other_cpus)
		WRITE_ONCE(smp_ops.crash_stop_other_cpus, base_crashes);
}

static void unwatch_crashes(void)
{
	if (crash_stop_other_cpus)
		WRITE_ONCE(smp_ops.crash_stop_other_cpus, crash_stop_other_cpus);
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
	watch_crashes();
	return 0;
}

void insula_base_exit(void)
{
	unwatch_crashes();
	atomic_notifier_chain_unregister(&panic_notifier_list, &panic_block);
	unregister_pm_notifier(&sleep_block);
	unregister_reboot_notifier(&reboot_block);
}
