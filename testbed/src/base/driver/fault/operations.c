// SPDX-License-Identifier: GPL-2.0-only
/*
 * Operations of file systems and of the network that lead to no code. None of them is called while
 * the fault lasts: nobody freezes the file system, sends such packets or makes such sockets.
 */
#include <linux/fs.h>
#include <linux/fs_struct.h>
#include <linux/if_ether.h>
#include <linux/mount.h>
#include <linux/netdevice.h>
#include <linux/netfilter.h>
#include <linux/netfilter_ipv4.h>
#include <linux/path.h>
#include <linux/pid.h>
#include <linux/sched/task.h>
#include <linux/slab.h>

#include <net/net_namespace.h>
#include <net/protocol.h>
#include <net/sock.h>

#include "fault.h"

/* Reserved for experiments: RFC 3692, and IEEE 802 (the first of two EtherTypes). */
#define UNUSED_PROTOCOL		253
#define UNUSED_ETHERTYPE	0x88b5
/* The descriptor of the process whose file is changed. */
#define DESCRIPTOR		1

/* Memory that is no code, to which the operations lead. */
static void *nowhere;

static void *nowhere_get(void)
{
	if (!nowhere)
		nowhere = kzalloc(PAGE_SIZE, GFP_KERNEL);
	return nowhere;
}

/* The root of the file system of the process that loads the driver. */
static struct path root;

static const struct super_operations *super_own;
static struct super_operations super_other;

static int super_inject(void)
{
	struct super_block *block;

	if (!nowhere_get())
		return -ENOMEM;
	get_fs_root(current->fs, &root);
	block = root.mnt->mnt_sb;
	super_own = block->s_op;
	super_other = *super_own;
	super_other.freeze_super = nowhere;
	WRITE_ONCE(block->s_op, &super_other);
	return 0;
}

static void super_undo(void)
{
	WRITE_ONCE(root.mnt->mnt_sb->s_op, super_own);
	path_put(&root);
}

static struct path folder;
static const struct inode_operations *inode_own;
static struct inode_operations inode_other;

static int inode_inject(void)
{
	struct inode *inode;

	if (!nowhere_get())
		return -ENOMEM;
	get_fs_root(current->fs, &folder);
	inode = d_inode(folder.dentry);
	inode_own = inode->i_op;
	inode_other = *inode_own;
	inode_other.fiemap = nowhere;
	WRITE_ONCE(inode->i_op, &inode_other);
	return 0;
}

static void inode_undo(void)
{
	WRITE_ONCE(d_inode(folder.dentry)->i_op, inode_own);
	path_put(&folder);
}

static struct file *file;
static const struct file_operations *file_own;
static struct file_operations file_other;

static int file_inject(void)
{
	struct file *(*get)(struct task_struct *task, unsigned int fd);
	struct task_struct *task;
	struct pid *id;

	get = (void *)lookup("fget_task");
	if (!get || !nowhere_get())
		return -ENOMEM;
	id = find_get_pid(process);
	task = get_pid_task(id, PIDTYPE_PID);
	put_pid(id);
	if (!task)
		return -ESRCH;
	file = get(task, DESCRIPTOR);
	put_task_struct(task);
	if (!file)
		return -EBADF;
	file_own = file->f_op;
	file_other = *file_own;
	file_other.remap_file_range = nowhere;
	WRITE_ONCE(file->f_op, &file_other);
	return 0;
}

static void file_undo(void)
{
	WRITE_ONCE(file->f_op, file_own);
	fput(file);
}

static struct proto proto = {
	.name = "insula_fault",
	.owner = THIS_MODULE,
	.obj_size = sizeof(struct sock),
};

static int proto_inject(void)
{
	if (!nowhere_get())
		return -ENOMEM;
	proto.unhash = nowhere;
	return proto_register(&proto, 0);
}

static void proto_undo(void)
{
	proto_unregister(&proto);
}

static struct proto_ops socket_operations = {
	.owner = THIS_MODULE,
};

static struct inet_protosw socket_kind = {
	.type = SOCK_RDM,
	.protocol = UNUSED_PROTOCOL,
	.prot = &proto,
	.ops = &socket_operations,
};

static int socket_inject(void)
{
	if (!nowhere_get())
		return -ENOMEM;
	socket_operations.shutdown = nowhere;
	inet_register_protosw(&socket_kind);
	return 0;
}

static void socket_undo(void)
{
	inet_unregister_protosw(&socket_kind);
}

static struct net_protocol handler;

static int handler_inject(void)
{
	if (!nowhere_get())
		return -ENOMEM;
	handler.handler = nowhere;
	return inet_add_protocol(&handler, UNUSED_PROTOCOL);
}

static void handler_undo(void)
{
	inet_del_protocol(&handler, UNUSED_PROTOCOL);
}

static struct packet_type packet = {
	.type = htons(UNUSED_ETHERTYPE),
};

static int packet_inject(void)
{
	if (!nowhere_get())
		return -ENOMEM;
	packet.func = nowhere;
	dev_add_pack(&packet);
	return 0;
}

static void packet_undo(void)
{
	dev_remove_pack(&packet);
}

static struct nf_hook_ops hook = {
	.pf = NFPROTO_IPV4,
	.hooknum = NF_INET_FORWARD,
	.priority = NF_IP_PRI_LAST,
};

static int hook_inject(void)
{
	if (!nowhere_get())
		return -ENOMEM;
	hook.hook = nowhere;
	return nf_register_net_hook(&init_net, &hook);
}

static void hook_undo(void)
{
	nf_unregister_net_hook(&init_net, &hook);
}

void operations_end(void)
{
	kfree(nowhere);
	nowhere = NULL;
}

const struct fault operations_faults[] = {
	{ "super", super_inject, super_undo },
	{ "inode", inode_inject, inode_undo },
	{ "file", file_inject, file_undo },
	{ "proto", proto_inject, proto_undo },
	{ "socket", socket_inject, socket_undo },
	{ "handler", handler_inject, handler_undo },
	{ "packet", packet_inject, packet_undo },
	{ "hook", hook_inject, hook_undo },
	{ }
};
