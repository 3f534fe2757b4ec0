// SPDX-License-Identifier: GPL-2.0-only
/*
 * Driver for tests of watching: makes one fault in the kernel that loads it, and undoes it
 * when it is removed.
 *
 *	fault=code		a byte in a function that is never called
 *	fault=call		the start of that function calls a function of this driver
 *	fault=constants		an entry of the table of system calls
 *	fault=gate		the handler of an exception that no processor raises
 *	fault=unlisted		a thread that is not in the list of tasks
 *	fault=unnumbered	a thread that is not in the table of ids
 *	fault=module		a module that is not in the list of modules
 *	fault=link		an entry of the list of tasks does not point back
 *	fault=credentials	the process `process` gets the kernel's own credentials
 *	fault=hung		a thread waits, and cannot be interrupted
 *	fault=soft		core `core` executes one thread only, from `begin` on
 *	fault=hard		core `core` takes no interrupts, from `begin` on
 *	fault=memory		two thirds of the free memory are taken
 *	fault=slab		a third of the free memory is in small objects
 *	fault=oops		a thread follows a null pointer; it is not undone
 *
 * What occupies a core ends by itself after LIMIT_S.
 */
#include <linux/completion.h>
#include <linux/cred.h>
#include <linux/delay.h>
#include <linux/idr.h>
#include <linux/kprobes.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pid_namespace.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/timekeeping.h>
#include <linux/vmalloc.h>

#include <asm/desc.h>
#include <asm/nops.h>
#include <asm/unistd.h>

#define LIMIT_S		60
/* Never called while the kernel runs. */
#define UNUSED_FUNCTION	"kernel_halt"
/* Behind the start of the function, and what a tracer's call would replace there. */
#define UNUSED_OFFSET	9
#define ENDBR_SIZE	4
#define CALL_OPCODE	0xe8
#define CALL_SIZE	5
/* Reserved (Intel SDM volume 3, table 6-1). */
#define UNUSED_VECTOR	22
#define OBJECT_SIZE	4096

static char *fault = "";
module_param(fault, charp, 0);
static int process;
module_param(process, int, 0);
static uint core = 1;
module_param(core, uint, 0);
/* Written once the driver is loaded: loading it needs all cores. */
static bool begin;
module_param(begin, bool, 0200);

struct fault {
	const char *name;
	int (*inject)(void);
	void (*undo)(void);
};

static unsigned long (*lookup)(const char *name);
static struct task_struct *thread;
static DECLARE_COMPLETION(done);

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

/*
 * Exchanges bytes within a page of the kernel's image, which it maps once more: where they
 * are, they cannot be written.
 */
static int image_exchange(unsigned long address, u8 *bytes, size_t size)
{
	struct page *page = pfn_to_page(__pa_symbol(address) >> PAGE_SHIFT);
	u8 *at = vmap(&page, 1, VM_MAP, PAGE_KERNEL);
	size_t i;

	if (!at)
		return -ENOMEM;
	for (i = 0; i < size; i++)
		swap(at[offset_in_page(address) + i], bytes[i]);
	vunmap(at);
	return 0;
}

/* What was exchanged: doing so again undoes it. */
static unsigned long exchanged_at;
static u8 exchanged[sizeof(gate_desc)];
static size_t exchanged_size;

static int exchange(unsigned long address, const void *bytes, size_t size)
{
	exchanged_at = address;
	exchanged_size = size;
	memcpy(exchanged, bytes, size);
	return image_exchange(address, exchanged, size);
}

static void exchange_undo(void)
{
	image_exchange(exchanged_at, exchanged, exchanged_size);
}

static int code_inject(void)
{
	unsigned long at = lookup(UNUSED_FUNCTION);
	u8 breakpoint = 0xcc;

	return at ? exchange(at + UNUSED_OFFSET, &breakpoint, 1) : -ENOENT;
}

static noinline void fault_target(void)
{
	pr_info("called\n");
}

static int call_inject(void)
{
	static const u8 untraced[CALL_SIZE] = { BYTES_NOP5 };
	unsigned long at = lookup(UNUSED_FUNCTION);
	u8 call[CALL_SIZE] = { CALL_OPCODE };
	s32 distance;

	if (!at)
		return -ENOENT;
	if (memcmp((void *)at, untraced, sizeof(untraced)))
		at += ENDBR_SIZE;
	distance = (unsigned long)fault_target - (at + CALL_SIZE);
	memcpy(call + 1, &distance, sizeof(distance));
	return exchange(at, call, sizeof(call));
}

static int constants_inject(void)
{
	unsigned long table = lookup("sys_call_table");
	unsigned long target = (unsigned long)fault_target;

	if (!table)
		return -ENOENT;
	return exchange(table + __NR_vserver * sizeof(target), &target, sizeof(target));
}

static int gate_inject(void)
{
	unsigned long table = lookup("idt_table");
	unsigned long target = (unsigned long)fault_target;
	gate_desc gate;

	if (!table)
		return -ENOENT;
	table += UNUSED_VECTOR * sizeof(gate);
	memcpy(&gate, (void *)table, sizeof(gate));
	gate.offset_low = target;
	gate.offset_middle = target >> 16;
	gate.offset_high = target >> 32;
	return exchange(table, &gate, sizeof(gate));
}

static int thread_wait(void *unused)
{
	wait_for_completion_interruptible(&done);
	return 0;
}

static int thread_hang(void *unused)
{
	wait_for_completion(&done);
	return 0;
}

static bool is_over(u64 deadline)
{
	return completion_done(&done) || ktime_get_mono_fast_ns() > deadline;
}

/* Returns when to end. */
static u64 wait_for_begin(void)
{
	while (!READ_ONCE(begin) && !completion_done(&done))
		msleep(20);
	return ktime_get_mono_fast_ns() + LIMIT_S * NSEC_PER_SEC;
}

static int thread_spin(void *unused)
{
	u64 deadline = wait_for_begin();

	preempt_disable();
	while (!is_over(deadline))
		cpu_relax();
	preempt_enable();
	return 0;
}

static int thread_spin_silently(void *unused)
{
	u64 deadline = wait_for_begin();

	local_irq_disable();
	while (!is_over(deadline))
		cpu_relax();
	local_irq_enable();
	return 0;
}

static int thread_fault(void *unused)
{
	int *nowhere = NULL;

	/* Behind the compiler's back. */
	OPTIMIZER_HIDE_VAR(nowhere);
	return READ_ONCE(*nowhere);
}

static int thread_start(int (*function)(void *))
{
	thread = kthread_create(function, NULL, "insula_fault");
	if (IS_ERR(thread))
		return PTR_ERR(thread);
	get_task_struct(thread);
	return 0;
}

/* A thread that executes the function, on no particular core. */
static int thread_run(int (*function)(void *))
{
	int err = thread_start(function);

	if (!err)
		wake_up_process(thread);
	return err;
}

static int thread_run_on_core(int (*function)(void *))
{
	int err;

	if (core >= nr_cpu_ids || !cpu_online(core))
		return -EINVAL;
	err = thread_start(function);
	if (err)
		return err;
	kthread_bind(thread, core);
	wake_up_process(thread);
	return 0;
}

static void thread_end(void)
{
	complete_all(&done);
	kthread_stop(thread);
	put_task_struct(thread);
}

static int unlisted_inject(void)
{
	rwlock_t *lock = (void *)lookup("tasklist_lock");
	int err = lock ? thread_run(thread_wait) : -ENOENT;

	if (err)
		return err;
	write_lock_irq(lock);
	list_del_rcu(&thread->tasks);
	write_unlock_irq(lock);
	return 0;
}

static void unlisted_undo(void)
{
	rwlock_t *lock = (void *)lookup("tasklist_lock");

	write_lock_irq(lock);
	/* A watcher may have done so. */
	if (thread->tasks.prev == LIST_POISON2)
		list_add_tail_rcu(&thread->tasks, &init_task.tasks);
	write_unlock_irq(lock);
	thread_end();
}

static int unnumbered_inject(void)
{
	int err = thread_run(thread_wait);

	if (err)
		return err;
	idr_replace(&init_pid_ns.idr, NULL, thread->pid);
	return 0;
}

static void unnumbered_undo(void)
{
	idr_replace(&init_pid_ns.idr, task_pid(thread), thread->pid);
	thread_end();
}

static struct module *hidden;

/* The list has the latest module first: the one before this. */
static int module_inject(void)
{
	struct mutex *lock = (void *)lookup("module_mutex");

	if (!lock)
		return -ENOENT;
	mutex_lock(lock);
	if (THIS_MODULE->list.next != THIS_MODULE->list.prev) {
		hidden = list_next_entry(THIS_MODULE, list);
		list_del_rcu(&hidden->list);
	}
	mutex_unlock(lock);
	return hidden ? 0 : -ENOENT;
}

static void module_undo(void)
{
	struct mutex *lock = (void *)lookup("module_mutex");

	mutex_lock(lock);
	list_add_rcu(&hidden->list, &THIS_MODULE->list);
	mutex_unlock(lock);
}

/* The thread before it in the list, which stays: no task may end beside a wrong link. */
static struct task_struct *neighbour;

static int link_inject(void)
{
	int err = thread_run(thread_wait);

	if (err)
		return err;
	neighbour = thread;
	err = thread_run(thread_wait);
	if (!err && thread->tasks.prev != &neighbour->tasks) {
		thread_end();
		err = -EAGAIN;
	}
	if (err) {
		thread = neighbour;
		thread_end();
		return err;
	}
	WRITE_ONCE(thread->tasks.prev, &thread->tasks);
	return 0;
}

static void link_undo(void)
{
	WRITE_ONCE(thread->tasks.prev, &neighbour->tasks);
	thread_end();
	thread = neighbour;
	thread_end();
}

static const struct cred *own_credentials;

/* Swaps the credentials of `thread`, which waits and does not use them. */
static const struct cred *credentials_swap(const struct cred *credentials)
{
	const struct cred *before = rcu_dereference_protected(thread->cred, true);

	rcu_assign_pointer(thread->real_cred, credentials);
	rcu_assign_pointer(thread->cred, credentials);
	return before;
}

static int credentials_inject(void)
{
	const struct cred *kernels = (void *)lookup("init_cred");
	struct pid *id = find_get_pid(process);

	thread = get_pid_task(id, PIDTYPE_PID);
	put_pid(id);
	if (!thread)
		return -ESRCH;
	own_credentials = credentials_swap(kernels);
	return 0;
}

static void credentials_undo(void)
{
	credentials_swap(own_credentials);
	put_task_struct(thread);
}

static int hung_inject(void)
{
	return thread_run(thread_hang);
}

static int soft_inject(void)
{
	return thread_run_on_core(thread_spin);
}

static int hard_inject(void)
{
	return thread_run_on_core(thread_spin_silently);
}

/* Pages or objects that are held: each begins with the address of the next. */
static void *held;

static void hold(void *what)
{
	*(void **)what = held;
	held = what;
}

static void *hold_next(void)
{
	void *what = held;

	if (what)
		held = *(void **)what;
	return what;
}

static int memory_inject(void)
{
	unsigned long count = global_zone_page_state(NR_FREE_PAGES) * 2 / 3;

	while (count--) {
		unsigned long page = __get_free_page(GFP_KERNEL | __GFP_NORETRY);

		if (!page)
			break;
		hold((void *)page);
	}
	return 0;
}

static void memory_undo(void)
{
	void *page;

	while ((page = hold_next()))
		free_page((unsigned long)page);
}

static struct kmem_cache *cache;

static int slab_inject(void)
{
	unsigned long count = global_zone_page_state(NR_FREE_PAGES) / 3;

	cache = kmem_cache_create("insula_fault", OBJECT_SIZE, 0, 0, NULL);
	if (!cache)
		return -ENOMEM;
	while (count--) {
		void *object = kmem_cache_alloc(cache, GFP_KERNEL | __GFP_NORETRY);

		if (!object)
			break;
		hold(object);
	}
	return 0;
}

static void slab_undo(void)
{
	void *object;

	while ((object = hold_next()))
		kmem_cache_free(cache, object);
	kmem_cache_destroy(cache);
}

/* The thread dies; kthread_stop() of it would wait for nothing. */
static int oops_inject(void)
{
	int err = thread_run(thread_fault);

	if (!err)
		put_task_struct(thread);
	return err;
}

static const struct fault faults[] = {
	{ "code", code_inject, exchange_undo },
	{ "call", call_inject, exchange_undo },
	{ "constants", constants_inject, exchange_undo },
	{ "gate", gate_inject, exchange_undo },
	{ "unlisted", unlisted_inject, unlisted_undo },
	{ "unnumbered", unnumbered_inject, unnumbered_undo },
	{ "module", module_inject, module_undo },
	{ "link", link_inject, link_undo },
	{ "credentials", credentials_inject, credentials_undo },
	{ "hung", hung_inject, thread_end },
	{ "soft", soft_inject, thread_end },
	{ "hard", hard_inject, thread_end },
	{ "memory", memory_inject, memory_undo },
	{ "slab", slab_inject, slab_undo },
	{ "oops", oops_inject, NULL },
};

static const struct fault *injected;

static int __init fault_init(void)
{
	int err = lookup_find();
	size_t i;

	if (err)
		return err;
	for (i = 0; i < ARRAY_SIZE(faults); i++) {
		if (!strcmp(fault, faults[i].name))
			injected = &faults[i];
	}
	return injected ? injected->inject() : -EINVAL;
}

static void __exit fault_exit(void)
{
	if (injected->undo)
		injected->undo();
}

module_init(fault_init);
module_exit(fault_exit);
MODULE_DESCRIPTION("Makes faults that a watcher is to find");
MODULE_LICENSE("GPL");
