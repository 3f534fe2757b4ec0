// SPDX-License-Identifier: GPL-2.0-only
/*
 * Nodes as their users hold them: by name and by descriptor. Here calls are copied
 * in and checked; what they do to a node is in life.c.
 */
#include "insula_module.h"

#include <linux/anon_inodes.h>
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/file.h>
#include <linux/jiffies.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/rcupdate.h>
#include <linux/security.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include <asm/irq_vectors.h>
#include <asm/tsc.h>

#include "arch/x86/start.h"
#include "channel.h"
#include "core.h"
#include "description.h"
#include "desks.h"
#include "device.h"
#include "lend.h"
#include "lending.h"
#include "life.h"
#include "memory.h"
#include "node.h"
#include "node_areas.h"
#include "registry.h"
#include "resize.h"
#include "shared.h"
#include "space.h"

/* How long a node may be kept from being stopped in order when the base goes down. */
#define BASE_DOWN_PATIENCE	(2 * HZ)
#define BASE_DOWN_POLL_MS	20

static struct insula_registry nodes = INSULA_REGISTRY(nodes);
static atomic_t last_id = ATOMIC_INIT(0);
static const struct file_operations node_fops;

static struct insula_node *node_of(struct insula_named *named)
{
	return container_of(named, struct insula_node, named);
}

/* Out of the registry and without memory. Its cores are back. Lock held. */
static void vanish(struct insula_node *node)
{
	struct file *memory = node->memory;

	lockdep_assert_held(&node->lock);
	mutex_lock(&nodes.lock);
	list_del_init(&node->named.link);
	mutex_unlock(&nodes.lock);
	WRITE_ONCE(node->memory, NULL);
	insula_node_unshare(node);
	insula_lending_put(node->lending);
	WRITE_ONCE(node->lending, NULL);
	insula_area_put(node->area);
	node->area = NULL;
	insula_desks_put(node->desks);
	node->desks = NULL;
	insula_node_changed(node);
	insula_memory_put(memory);
}

/* What is copied from user space before anything is taken. */
static struct insula_node *new_node(const struct insula_node_create *request)
{
	struct insula_node *node = insula_node_new();
	int err;

	if (!node)
		return ERR_PTR(-ENOMEM);
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
	insula_node_put(node);
	return ERR_PTR(err);
}

/* Memory, name and cores, in the order of what each costs to undo. */
static int acquire(struct insula_node *node, int memory_fd)
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
		node->has_cores = true;
		node->memory = memory;
		return 0;
	}
	mutex_lock(&nodes.lock);
	list_del_init(&node->named.link);
	mutex_unlock(&nodes.lock);
unclaim:
	insula_memory_unclaim(memory);
put_memory:
	insula_memory_put(memory);
	return err;
}

/* An open file of a node; takes over the caller's reference, also on failure. */
static struct file *open_node(struct insula_node *node)
{
	struct file *file = anon_inode_getfile("[insula-node]", &node_fops, node, O_RDWR);

	if (IS_ERR(file))
		insula_node_put(node);
	return file;
}

/* With a descriptor reserved and a file at hand, nothing can fail any more. */
static int create(struct insula_node *node, struct file *file, int memory_fd)
{
	int err;

	mutex_lock(&node->lock);
	node->owner = file;
	err = acquire(node, memory_fd);
	mutex_unlock(&node->lock);
	return err;
}

/*
 * A node's kernel executes in ring 0 and is nobody's to have signed. So where the base
 * would not start an unsigned kernel by kexec_load(), it starts no node.
 */
static int may_begin(void)
{
	return security_locked_down(LOCKDOWN_KEXEC);
}

int insula_node_create(void __user *argument)
{
	struct insula_node_create request;
	struct file *file;
	struct insula_node *node;
	int fd, err;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (request.flags || !request.cpus_count || request.cpus_count > INSULA_NODE_CPUS_MAX)
		return -EINVAL;
	err = may_begin();
	if (err)
		return err;
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

static int install(struct insula_node *node)
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

static int interrupt_node(struct insula_node *node, const struct insula_node_interrupt *interrupt)
{
	bool nmi = interrupt->vector == INSULA_VECTOR_NMI;
	u32 apic_id;

	if (interrupt->index >= node->cpus_count)
		return -EINVAL;
	if (!nmi && (interrupt->vector < FIRST_EXTERNAL_VECTOR || interrupt->vector >= NR_VECTORS))
		return -EINVAL;
	if (node->state != INSULA_RUNNING)
		return -EALREADY;
	apic_id = insula_core_apic_id(node->cpus[interrupt->index]);
	if (nmi)
		insula_start_nmi(apic_id);
	else
		insula_start_interrupt(apic_id, interrupt->vector);
	return 0;
}

static int remove_node(struct insula_node *node)
{
	if (node->state != INSULA_STOPPED)
		return -EBUSY;
	insula_node_retire(node); /* its cores may be held for its next start */
	vanish(node);
	insula_node_put(node); /* the registry's; the caller's descriptor has one too */
	return 0;
}

static void list_cpus(const struct insula_node *node, struct insula_cpu *list, u32 room)
{
	u32 i;

	for (i = 0; i < min(room, node->cpus_count); i++)
		list[i] = (struct insula_cpu) {
			.cpu = node->cpus[i],
			.apic_id = insula_core_apic_id(node->cpus[i]),
			.owner = INSULA_CPU_NODE,
			.node = node->id,
		};
}

static u32 flags(const struct insula_node *node)
{
	u32 flags = 0;

	if (node->supervisor)
		flags |= INSULA_NODE_SUPERVISED;
	if (node->state == INSULA_STOPPED && node->has_cores)
		flags |= INSULA_NODE_HELD;
	if (node->unresponsive && node->state == INSULA_RUNNING)
		flags |= INSULA_NODE_UNRESPONSIVE;
	if (node->retired)
		flags |= INSULA_NODE_RETIRED;
	return flags;
}

static void describe(const struct insula_node *node, struct insula_node_info *info)
{
	memcpy(info->name, node->named.name, sizeof(info->name));
	info->id = node->id;
	info->state = node->state;
	info->reason = node->reason;
	info->cpus_count = node->cpus_count;
	info->flags = flags(node);
	info->memory_size = insula_memory_size(node->memory);
	info->starts = node->starts;
	info->started_ns = node->started_ns;
	info->ended_ns = node->ended_ns;
	info->start_tsc = node->start_tsc;
	info->entry_tsc = node->entry_tsc;
	info->power_off = node->start.power_off;
	info->reset = node->start.reset;
}

/* Both are told as of one moment. */
static int look_at(struct insula_node *node, struct insula_node_info *info,
		   struct insula_cpu *cpus, u32 room)
{
	int err = -ENODEV;

	if (mutex_lock_killable(&node->lock))
		return -EINTR;
	if (node->memory) {
		describe(node, info);
		list_cpus(node, cpus, room);
		err = 0;
	}
	mutex_unlock(&node->lock);
	return err;
}

/* The caller's memory may come from the very node: it is not waited for with the lock. */
static int node_info(struct insula_node *node, void __user *argument)
{
	struct insula_node_info info;
	struct insula_cpu *cpus;
	u32 room;
	int err;

	if (copy_from_user(&info, argument, sizeof(info)))
		return -EFAULT;
	room = min_t(u32, info.cpus_capacity, INSULA_NODE_CPUS_MAX);
	cpus = kvcalloc(room, sizeof(*cpus), GFP_KERNEL);
	if (!cpus && room)
		return -ENOMEM;
	err = look_at(node, &info, cpus, room);
	if (!err && (copy_to_user(u64_to_user_ptr(info.cpus), cpus,
				  min(room, info.cpus_count) * sizeof(*cpus)) ||
		     copy_to_user(argument, &info, sizeof(info))))
		err = -EFAULT;
	kvfree(cpus);
	return err;
}

static int ioctl_start(struct file *file, struct insula_node *node, void __user *argument)
{
	struct insula_node_start start;
	u64 tsc = rdtsc_ordered();
	int err = may_begin();

	if (err)
		return err;
	if (copy_from_user(&start, argument, sizeof(start)))
		return -EFAULT;
	if (node->state == INSULA_CREATING && node->owner != file)
		return -EPERM;
	node->start_tsc = tsc;
	return insula_node_start(node, &start);
}

static int ioctl_stop(struct insula_node *node, void __user *argument)
{
	struct insula_node_stop stop;

	if (copy_from_user(&stop, argument, sizeof(stop)))
		return -EFAULT;
	if (stop.reserved)
		return -EINVAL;
	switch (stop.reason) {
	case INSULA_REASON_STOPPED:
	case INSULA_REASON_KILLED:
	case INSULA_REASON_CRASHED:
	case INSULA_REASON_HALTED:
	case INSULA_REASON_HUNG:
	case INSULA_REASON_DEVICE_LOST:
		return insula_node_stop(node, stop.reason);
	default:
		return -EINVAL;
	}
}

static int ioctl_supervise(struct file *file, struct insula_node *node, void __user *argument)
{
	struct insula_node_supervise supervise;

	if (copy_from_user(&supervise, argument, sizeof(supervise)))
		return -EFAULT;
	return insula_node_supervise(node, file, &supervise);
}

static int ioctl_retire(struct insula_node *node)
{
	insula_node_retire(node);
	return 0;
}

static int ioctl_recreate(struct file *file, struct insula_node *node, void __user *argument)
{
	struct insula_description_data *description;
	struct insula_node_recreate recreate;
	int err;

	if (copy_from_user(&recreate, argument, sizeof(recreate)))
		return -EFAULT;
	if (recreate.flags & ~INSULA_RECREATE_UNLESS_RETIRED)
		return -EINVAL;
	err = may_begin();
	if (err)
		return err;
	description = insula_description_copy(recreate.description, recreate.description_size);
	if (IS_ERR(description))
		return PTR_ERR(description);
	err = insula_node_recreate(node, file, recreate.flags, description);
	if (err)
		insula_description_free(description);
	return err;
}

static int ioctl_interrupt(struct insula_node *node, void __user *argument)
{
	struct insula_node_interrupt interrupt;

	if (copy_from_user(&interrupt, argument, sizeof(interrupt)))
		return -EFAULT;
	return interrupt_node(node, &interrupt);
}

static int create_space(struct insula_node *node, void __user *argument)
{
	if (!node->desks)
		return -EOPNOTSUPP;
	if (node->state != INSULA_RUNNING)
		return -EPIPE;
	return insula_space_create(node->desks, argument);
}

static int ioctl_device_add(struct file *file, struct insula_node *node, void __user *argument)
{
	struct insula_device device;

	if (copy_from_user(&device, argument, sizeof(device)))
		return -EFAULT;
	if (node->state != INSULA_CREATING)
		return -EBUSY;
	if (node->owner != file)
		return -EPERM;
	return insula_device_claim(&node->devices, &device, node->memory);
}

static int dispatch(struct file *file, struct insula_node *node, unsigned int command,
		    void __user *argument)
{
	lockdep_assert_held(&node->lock);
	switch (command) {
	case INSULA_NODE_START:
		return ioctl_start(file, node, argument);
	case INSULA_NODE_STOP:
		return ioctl_stop(node, argument);
	case INSULA_NODE_REMOVE:
		return remove_node(node);
	case INSULA_NODE_INTERRUPT:
		return ioctl_interrupt(node, argument);
	case INSULA_NODE_CHANNELS:
		return insula_node_lay_out_channels(node, argument);
	case INSULA_CHANNEL_OPEN:
		return node->area ? insula_channel_open(node->area, argument) : -ENOENT;
	case INSULA_NODE_DELEGATION:
		return insula_node_lay_out_desks(node, argument);
	case INSULA_SPACE_CREATE:
		return create_space(node, argument);
	case INSULA_NODE_LEND:
		return insula_lender_create(node, argument);
	case INSULA_NODE_SUPERVISE:
		return ioctl_supervise(file, node, argument);
	case INSULA_NODE_RETIRE:
		return ioctl_retire(node);
	case INSULA_NODE_RECREATE:
		return ioctl_recreate(file, node, argument);
	case INSULA_NODE_GROW:
		return insula_node_grow(node, argument);
	case INSULA_NODE_SHRINK:
		return insula_node_shrink(node, argument);
	case INSULA_NODE_SHARE:
		return insula_node_share(node, file, argument);
	case INSULA_NODE_SHARED:
		return insula_node_shared(node);
	case INSULA_NODE_MEMORY:
		return insula_memory_install(node->memory);
	case INSULA_NODE_DEVICE_ADD:
		return ioctl_device_add(file, node, argument);
	case INSULA_NODE_DEVICES:
		return insula_devices_list(&node->devices, argument);
	case INSULA_DESCRIPTION:
		return insula_description_read(node->description, argument);
	default:
		return -ENOTTY;
	}
}

static long node_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct insula_node *node = file->private_data;
	long answer;

	if (command == INSULA_NODE_INFO)
		return node_info(node, (void __user *)argument);
	if (mutex_lock_killable(&node->lock))
		return -EINTR;
	if (!node->memory)
		answer = -ENODEV;
	else
		answer = dispatch(file, node, command, (void __user *)argument);
	mutex_unlock(&node->lock);
	return answer;
}

/* Without the lock, whose holder may be at work for long: each word is read by itself. */
static __poll_t node_poll(struct file *file, struct poll_table_struct *wait)
{
	struct insula_node *node = file->private_data;
	__poll_t events = 0;

	poll_wait(file, &node->changes, wait);
	if (!READ_ONCE(node->memory))
		return EPOLLHUP;
	if (READ_ONCE(node->state) == INSULA_STOPPED)
		events |= EPOLLIN | EPOLLRDNORM;
	if (READ_ONCE(node->retired))
		events |= EPOLLPRI;
	return events;
}

static int node_release(struct inode *inode, struct file *file)
{
	struct insula_node *node = file->private_data;

	mutex_lock(&node->lock);
	if (node->memory && insula_node_leave(node, file))
		vanish(node);
	mutex_unlock(&node->lock);
	insula_node_put(node);
	return 0;
}

static const struct file_operations node_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = node_ioctl,
	.poll = node_poll,
	.release = node_release,
};

/* Nodes that could not be stopped, as somebody is at work on them. */
static unsigned int stop_nodes(void)
{
	struct insula_named *named;
	unsigned int left = 0;

	mutex_lock(&nodes.lock);
	list_for_each_entry(named, &nodes.named, link) {
		struct insula_node *node = node_of(named);

		/* Whoever holds it may wait for the registry: never wait here. */
		if (!mutex_trylock(&node->lock)) {
			left++;
			continue;
		}
		insula_node_base_down(node);
		mutex_unlock(&node->lock);
	}
	mutex_unlock(&nodes.lock);
	return left;
}

void insula_nodes_base_down(void)
{
	unsigned long deadline = jiffies + BASE_DOWN_PATIENCE;

	insula_cores_close();
	synchronize_rcu();
	while (stop_nodes() && time_before(jiffies, deadline))
		msleep(BASE_DOWN_POLL_MS);
	/* Whoever is at work on a node that is left finds its cores stopped. */
	insula_cores_settle_all();
}
