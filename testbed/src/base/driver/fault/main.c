// SPDX-License-Identifier: GPL-2.0-only
/*
 * Driver for tests of watching: makes faults in the kernel that loads it, and undoes them when
 * it is removed.
 *
 *	fault=code		a byte in a function that is never called
 *	fault=call		the start of that function calls a function of this driver
 *	fault=constants		an entry of the table of system calls
 *	fault=gate		the handler of an exception that no processor raises
 *	fault=module-code	a byte in a function of this driver
 *	fault=module-constants	a constant of this driver
 *	fault=unlisted		a thread that is not in the list of tasks
 *	fault=unnumbered	a thread that is not in the table of ids
 *	fault=module		a module that is not in the list of modules
 *	fault=link		an entry of the list of tasks does not point back
 *	fault=credentials	the process `process` gets the kernel's own credentials
 *	fault=hung		a thread waits, and cannot be interrupted
 *	fault=soft		core `core` executes one thread only, from `begin` on
 *	fault=hard		core `core` takes no interrupts, from `begin` on
 *	fault=mutex		a thread waits for a mutex of one that has ended
 *	fault=semaphore		the same of a read-write semaphore
 *	fault=deadlock		two threads wait for mutexes of each other
 *	fault=memory		two thirds of the free memory are taken
 *	fault=slab		a third of the free memory is in small objects
 *	fault=super		an operation of the root file system leads to no code
 *	fault=inode		the same of the root folder
 *	fault=file		the same of the file that the process `process` writes to
 *	fault=proto		the same of a protocol of sockets
 *	fault=socket		the same of a kind of sockets
 *	fault=handler		the same of a protocol of IP
 *	fault=packet		the same of a handler of packets
 *	fault=hook		the same of a hook of netfilter
 *	fault=oops		a thread follows a null pointer; it is not undone
 *
 * Several are made in the order of their names: fault=code,gate. What occupies a core ends by
 * itself (see hang.c).
 */
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/string.h>

#include "fault.h"

#define FAULTS_MAX	32

static char *fault[FAULTS_MAX];
static unsigned int count;
module_param_array(fault, charp, &count, 0);
int process;
module_param(process, int, 0);
uint core = 1;
module_param(core, uint, 0);
/* Written once the driver is loaded: loading it needs all cores. */
bool begin;
module_param(begin, bool, 0200);

typeof(kallsyms_lookup_name) *lookup;

static const struct fault *const subjects[] = {
	image_faults, list_faults, credentials_faults, hang_faults, lock_faults, memory_faults,
	operations_faults,
};

/* Those that were made, in that order. */
static const struct fault *injected[FAULTS_MAX];
static size_t injected_count;

/* The function is not exported, but a probe on it tells its address. */
static int lookup_find(void)
{
	struct kprobe probe = { .symbol_name = "kallsyms_lookup_name" };
	int err = register_kprobe(&probe);

	if (err)
		return err;
	lookup = (void *)probe.addr;
	unregister_kprobe(&probe);
	return 0;
}

noinline void fault_target(void)
{
	pr_info("called\n");
}

static const struct fault *fault_named(const char *name)
{
	const struct fault *one;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(subjects); i++) {
		for (one = subjects[i]; one->name; one++) {
			if (!strcmp(name, one->name))
				return one;
		}
	}
	return NULL;
}

static int fault_inject(const char *name)
{
	const struct fault *one = fault_named(name);
	int err = one ? one->inject() : -EINVAL;

	if (!err)
		injected[injected_count++] = one;
	return err;
}

static void fault_undo_all(void)
{
	while (injected_count) {
		const struct fault *one = injected[--injected_count];

		if (one->undo)
			one->undo();
	}
	operations_end();
}

static int __init fault_init(void)
{
	int err = lookup_find();
	unsigned int i;

	if (!count)
		err = -EINVAL;
	for (i = 0; i < count && !err; i++)
		err = fault_inject(fault[i]);
	if (err)
		fault_undo_all();
	return err;
}

static void __exit fault_exit(void)
{
	fault_undo_all();
}

module_init(fault_init);
module_exit(fault_exit);
MODULE_DESCRIPTION("Makes faults that a watcher is to find");
MODULE_LICENSE("GPL");
