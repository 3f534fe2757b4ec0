// SPDX-License-Identifier: GPL-2.0-only
/*
 * Files with inodes of their own: Linux' anonymous files share one inode. These are in a pseudo
 * file system that cannot be mounted, and exists as long as one of them does.
 */
#include "mem/file.h"

#include <linux/err.h>
#include <linux/file.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/pseudo_fs.h>

#include "insula_module.h"

#define FILES_MAGIC	0x494e5355	/* "INSU" */

static struct vfsmount *mount;
static int mount_users;

static int file_init_context(struct fs_context *context)
{
	return init_pseudo(context, FILES_MAGIC) ? 0 : -ENOMEM;
}

static struct file_system_type files = {
	.name = "insula",
	.owner = THIS_MODULE,
	.init_fs_context = file_init_context,
	.kill_sb = kill_anon_super,
};

static struct file *file_create(const char *name, const struct file_operations *operations)
{
	struct inode *inode = alloc_anon_inode(mount->mnt_sb);
	struct file *file;

	if (IS_ERR(inode))
		return ERR_CAST(inode);
	file = alloc_file_pseudo(inode, mount, name, O_RDWR, operations);
	if (IS_ERR(file))
		iput(inode);
	return file;
}

struct file *insula_file_create(const char *name, const struct file_operations *operations,
				void *data)
{
	struct file *file;
	int err = simple_pin_fs(&files, &mount, &mount_users);

	if (err)
		return ERR_PTR(err);
	file = file_create(name, operations);
	/* The file holds the mount from here on. */
	simple_release_fs(&mount, &mount_users);
	if (IS_ERR(file))
		return file;
	__module_get(THIS_MODULE); /* put with the file's last reference */
	file->private_data = data;
	return file;
}

int insula_file_install(struct file *file)
{
	int fd = get_unused_fd_flags(O_CLOEXEC);

	if (fd < 0)
		fput(file);
	else
		fd_install(fd, file);
	return fd;
}
