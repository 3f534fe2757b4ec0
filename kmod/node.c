// SPDX-License-Identifier: GPL-2.0-only
/*
 * The life of a node:
 *
 *	CREATING  has cores and memory, belongs to the descriptor that made it
 *	CREATED   its first core is being started
 *	RUNNING   belongs to the registry; watched for its end
 *	STOPPED   cores given back, memory kept so that its log can be read
 *	(gone)    removed; descriptors that are still open answer ENODEV
 *
 * Until RUNNING, closing the owner's descriptor ends it all, whatever closed it.
 */
#include "insula_module.h"

#include <linux/anon_inodes.h>
#include <linux/err.h>
#include <linux/file.h>
#include <linux/io.h>
#include <linux/kref.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>

#include <asm/irq_vectors.h>
#include <asm/tsc.h>

#include "arch/x86/start.h"
#include "core.h"
#include "description.h"
#include "memory.h"
#include "node.h"
#include "registry.h"
#include "watch.h"

struct node {
	struct insula_named named;
	struct kref refs;		/* descriptors, registry once running, reaping */
	struct mutex lock;		/* all below */
	struct file *owner;		/* descriptor it belongs to, till it runs */
	struct file *memory;		/* NULL before it is put together, and when gone */
	struct insula_description_data *description;
	u32 id;
	enum insula_state state;
	enum insula_reason reason;
	u32 cpus_count;
	u32 *cpus;
	struct insula_node_start start;
	u64 started_ns, ended_ns;
	u64 start_tsc, entry_tsc;
	struct insula_watch watch;
	struct work_struct reap;
	enum insula_reason seen;	/* by the watch, for reap */
};

static struct insula_registry nodes = INSULA_REGISTRY(nodes);
static atomic_t last_id = ATOMIC_INIT(0);
static struct workqueue_struct *reaper;
static const struct file_operations node_fops;

static struct node *node_of(struct insula_named *named)
{
	return container_of(named, struct node, named);
}

static void free_node(struct kref *refs)
{
	struct node *node = container_of(refs, struct node, refs);

	insula_description_free(node->description);
	kfree(node->cpus);
	kfree(node);
}

static void put_node(struct node *node)
{
	kref_put(&node->refs, free_node);
}

/* Out of the registry and without memory. Its cores are back. Lock held. */
static void vanish(struct node *node)
{
	mutex_lock(&nodes.lock);
	list_del_init(&node->named.link);
	mutex_unlock(&nodes.lock);
	fput(node->memory);
	node->memory = NULL;
}

/*
 * Its cores go back. If one cannot be stopped, none do, and its memory is held for
 * good, the module with it: what a core may still be using is nobody else's. Lock
 * held.
 */
static void return_cores(struct node *node)
{
	if (!insula_cores_return(node->cpus, node->cpus_count))
		return;
	get_file(node->memory);
	pr_crit("cores and memory of node %s are lost until the machine is reset\n",
		node->named.name);
}

/* It runs no more. Lock held. */
static void end(struct node *node, enum insula_reason reason)
{
	insula_watch_remove(&node->watch);
	insula_cores_reset(node->cpus, node->cpus_count);
	node->state = INSULA_STOPPED;
	node->reason = reason;
	node->ended_ns = ktime_get_boottime_ns();
}

static void reap(struct work_struct *work)
{
	struct node *node = container_of(work, struct node, reap);

	mutex_lock(&node->lock);
	if (node->state == INSULA_RUNNING) {
		end(node, node->seen);
		return_cores(node);
	}
	mutex_unlock(&node->lock);
	put_node(node);
}

static void watch_ended(struct insula_watch *watch, enum insula_reason reason)
{
	struct node *node = container_of(watch, struct node, watch);

	node->seen = reason;
	kref_get(&node->refs);
	queue_work(reaper, &node->reap);
}

/* What is copied from user space before anything is taken. */
static struct node *new_node(const struct insula_node_create *request)
{
	struct node *node = kzalloc(sizeof(*node), GFP_KERNEL);
	int err;

	if (!node)
		return ERR_PTR(-ENOMEM);
	kref_init(&node->refs);
	mutex_init(&node->lock);
	INIT_LIST_HEAD(&node->watch.link);
	INIT_WORK(&node->reap, reap);
	node->cpus_count = request->cpus_count;
	err = insula_name_copy(node->named.name, request->name);
	if (err)
		goto free;
	node->cpus = memdup_user(u64_to_user_ptr(request->cpus),
				 request->cpus_count * sizeof(*node->cpus));
	if (IS_ERR(node->cpus)) {
		err = PTR_ERR(node->cpus);
		node->cpus = NULL;
		goto free;
	}
	node->description = insula_description_copy(request->description,
						    request->description_size);
	if (!IS_ERR(node->description))
		return node;
	err = PTR_ERR(node->description);
	node->description = NULL;
free:
	put_node(node);
	return ERR_PTR(err);
}

/* Memory, name and cores, in the order of what each costs to undo. */
static int acquire(struct node *node, int memory_fd)
{
	struct file *memory = insula_memory_get(memory_fd);
	int err;

	if (IS_ERR(memory))
		return PTR_ERR(memory);
	err = insula_memory_claim(memory);
	if (err)
		goto put_memory;
	mutex_lock(&nodes.lock);
	err = insula_registry_add(&nodes, &node->named);
	mutex_unlock(&nodes.lock);
	if (err)
		goto unclaim;
	node->id = atomic_inc_return(&last_id);
	err = insula_cores_take(node->cpus, node->cpus_count, node->id);
	if (!err) {
		node->memory = memory;
		return 0;
	}
	mutex_lock(&nodes.lock);
	list_del_init(&node->named.link);
	mutex_unlock(&nodes.lock);
unclaim:
	insula_memory_unclaim(memory);
put_memory:
	fput(memory);
	return err;
}

/* An open file of a node; takes over the caller's reference, also on failure. */
static struct file *open_node(struct node *node)
{
	struct file *file = anon_inode_getfile("[insula-node]", &node_fops, node, O_RDWR);

	if (IS_ERR(file))
		put_node(node);
	return file;
}

/* With a descriptor reserved and a file at hand, nothing can fail any more. */
static int create(struct node *node, struct file *file, int memory_fd)
{
	int err;

	mutex_lock(&node->lock);
	node->owner = file;
	err = acquire(node, memory_fd);
	mutex_unlock(&node->lock);
	return err;
}

int insula_node_create(void __user *argument)
{
	struct insula_node_create request;
	struct file *file;
	struct node *node;
	int fd, err;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (request.flags || !request.cpus_count || request.cpus_count > INSULA_NODE_CPUS_MAX)
		return -EINVAL;
	node = new_node(&request);
	if (IS_ERR(node))
		return PTR_ERR(node);
	file = open_node(node);
	if (IS_ERR(file))
		return PTR_ERR(file);
	fd = get_unused_fd_flags(O_CLOEXEC);
	err = fd < 0 ? fd : create(node, file, request.memory);
	if (!err) {
		fd_install(fd, file);
		return fd;
	}
	if (fd >= 0)
		put_unused_fd(fd);
	fput(file);
	return err;
}

static int install(struct node *node)
{
	struct file *file = open_node(node);
	int fd;

	if (IS_ERR(file))
		return PTR_ERR(file);
	fd = get_unused_fd_flags(O_CLOEXEC);
	if (fd < 0)
		fput(file);
	else
		fd_install(fd, file);
	return fd;
}

int insula_node_open(void __user *argument)
{
	char name[INSULA_NAME_MAX];
	struct insula_name request;
	struct insula_named *named;
	int err;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	err = insula_name_copy(name, request.name);
	if (err)
		return err;
	mutex_lock(&nodes.lock);
	named = insula_registry_find(&nodes, name);
	if (named)
		kref_get(&node_of(named)->refs);
	mutex_unlock(&nodes.lock);
	return named ? install(node_of(named)) : -ENOENT;
}

int insula_node_list(void __user *argument)
{
	return insula_registry_list(&nodes, argument);
}

static bool start_valid(const struct node *node, const struct insula_node_start *start)
{
	return start->page_table && !(start->page_table & ~PAGE_MASK) &&
	       insula_memory_covers(node->memory, start->page_table, PAGE_SIZE) &&
	       insula_memory_covers(node->memory, start->entry, 1) &&
	       insula_memory_covers(node->memory, start->power_off, 1) &&
	       insula_memory_covers(node->memory, start->reset, 1);
}

static void begin_watch(struct node *node)
{
	node->watch.power_off = phys_to_virt(node->start.power_off);
	node->watch.reset = phys_to_virt(node->start.reset);
	node->watch.cpus = node->cpus;
	node->watch.cpus_count = node->cpus_count;
	node->watch.ended = watch_ended;
	insula_watch_add(&node->watch);
}

/* Lock held, node there. */
static int start_node(struct node *node, const struct insula_node_start *start)
{
	struct insula_entry entry = {
		.address = start->entry,
		.page_table = start->page_table,
		.argument = start->argument,
	};
	int err;

	if (node->state != INSULA_CREATING)
		return -EBUSY;
	if (!start_valid(node, start))
		return -EINVAL;
	node->state = INSULA_CREATED;
	node->start = *start;
	err = insula_start_core(insula_core_apic_id(node->cpus[0]), &entry, &node->entry_tsc);
	if (err) {
		node->state = INSULA_CREATING;
		return err;
	}
	kref_get(&node->refs); /* the registry's */
	node->owner = NULL;
	node->state = INSULA_RUNNING;
	node->started_ns = ktime_get_boottime_ns();
	begin_watch(node);
	return 0;
}

static int stop_node(struct node *node, const struct insula_node_stop *stop)
{
	if (stop->reserved || stop->reason < INSULA_REASON_STOPPED ||
	    stop->reason > INSULA_REASON_CRASHED)
		return -EINVAL;
	if (node->state != INSULA_RUNNING)
		return -EALREADY;
	end(node, stop->reason);
	return_cores(node);
	return 0;
}

static int interrupt_node(struct node *node, const struct insula_node_interrupt *interrupt)
{
	if (interrupt->index >= node->cpus_count ||
	    interrupt->vector < FIRST_EXTERNAL_VECTOR || interrupt->vector >= NR_VECTORS)
		return -EINVAL;
	if (node->state != INSULA_RUNNING)
		return -EALREADY;
	insula_start_interrupt(insula_core_apic_id(node->cpus[interrupt->index]),
			       interrupt->vector);
	return 0;
}

static int remove_node(struct node *node)
{
	if (node->state != INSULA_STOPPED)
		return -EBUSY;
	vanish(node);
	put_node(node); /* the registry's; the caller's descriptor has one too */
	return 0;
}

static int put_cpus(const struct node *node, u64 to, u32 capacity)
{
	struct insula_cpu __user *out = u64_to_user_ptr(to);
	struct insula_cpu entry;
	u32 i;

	for (i = 0; i < min(capacity, node->cpus_count); i++) {
		entry = (struct insula_cpu) {
			.cpu = node->cpus[i],
			.apic_id = insula_core_apic_id(node->cpus[i]),
			.owner = INSULA_CPU_NODE,
			.node = node->id,
		};
		if (copy_to_user(&out[i], &entry, sizeof(entry)))
			return -EFAULT;
	}
	return 0;
}

static int node_info(struct node *node, void __user *argument)
{
	struct insula_node_info info;

	if (copy_from_user(&info, argument, sizeof(info)))
		return -EFAULT;
	memcpy(info.name, node->named.name, sizeof(info.name));
	info.id = node->id;
	info.state = node->state;
	info.reason = node->reason;
	info.cpus_count = node->cpus_count;
	info.reserved = 0;
	info.memory_size = insula_memory_size(node->memory);
	info.started_ns = node->started_ns;
	info.ended_ns = node->ended_ns;
	info.start_tsc = node->start_tsc;
	info.entry_tsc = node->entry_tsc;
	info.power_off = node->start.power_off;
	info.reset = node->start.reset;
	if (put_cpus(node, info.cpus, info.cpus_capacity))
		return -EFAULT;
	return copy_to_user(argument, &info, sizeof(info)) ? -EFAULT : 0;
}

static int ioctl_start(struct file *file, struct node *node, void __user *argument)
{
	struct insula_node_start start;
	u64 tsc = rdtsc_ordered();

	if (copy_from_user(&start, argument, sizeof(start)))
		return -EFAULT;
	if (node->state == INSULA_CREATING && node->owner != file)
		return -EPERM;
	node->start_tsc = tsc;
	return start_node(node, &start);
}

static int ioctl_stop(struct node *node, void __user *argument)
{
	struct insula_node_stop stop;

	if (copy_from_user(&stop, argument, sizeof(stop)))
		return -EFAULT;
	return stop_node(node, &stop);
}

static int ioctl_interrupt(struct node *node, void __user *argument)
{
	struct insula_node_interrupt interrupt;

	if (copy_from_user(&interrupt, argument, sizeof(interrupt)))
		return -EFAULT;
	return interrupt_node(node, &interrupt);
}

static int dispatch(struct file *file, struct node *node, unsigned int command,
		    void __user *argument)
{
	switch (command) {
	case INSULA_NODE_START:
		return ioctl_start(file, node, argument);
	case INSULA_NODE_STOP:
		return ioctl_stop(node, argument);
	case INSULA_NODE_INFO:
		return node_info(node, argument);
	case INSULA_NODE_REMOVE:
		return remove_node(node);
	case INSULA_NODE_INTERRUPT:
		return ioctl_interrupt(node, argument);
	case INSULA_NODE_MEMORY:
		return insula_memory_install(node->memory);
	case INSULA_DESCRIPTION:
		return insula_description_read(node->description, argument);
	default:
		return -ENOTTY;
	}
}

static long node_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct node *node = file->private_data;
	long answer;

	if (mutex_lock_killable(&node->lock))
		return -EINTR;
	if (!node->memory)
		answer = -ENODEV;
	else
		answer = dispatch(file, node, command, (void __user *)argument);
	mutex_unlock(&node->lock);
	return answer;
}

static int node_release(struct inode *inode, struct file *file)
{
	struct node *node = file->private_data;

	mutex_lock(&node->lock);
	if (node->owner == file && node->memory) {
		return_cores(node);
		vanish(node);
	}
	mutex_unlock(&node->lock);
	put_node(node);
	return 0;
}

static const struct file_operations node_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = node_ioctl,
	.release = node_release,
};

int insula_nodes_init(void)
{
	reaper = alloc_workqueue("insula", WQ_UNBOUND, 0);
	return reaper ? 0 : -ENOMEM;
}

void insula_nodes_exit(void)
{
	destroy_workqueue(reaper);
}

void insula_nodes_base_down(void)
{
	struct insula_named *named;
	struct node *node;

	mutex_lock(&nodes.lock);
	list_for_each_entry(named, &nodes.named, link) {
		node = node_of(named);
		/* Whoever holds it may wait for the registry: never wait here. */
		if (!mutex_trylock(&node->lock)) {
			insula_cores_reset(node->cpus, node->cpus_count);
			continue;
		}
		if (node->state == INSULA_RUNNING) {
			end(node, INSULA_REASON_BASE);
			insula_cores_settle(node->cpus, node->cpus_count);
		}
		mutex_unlock(&node->lock);
	}
	mutex_unlock(&nodes.lock);
}
