// SPDX-License-Identifier: GPL-2.0-only
#include "insula_module.h"

#include <linux/ctype.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "registry.h"

static bool name_character(char c, bool first)
{
	if (isascii(c) && isalnum(c))
		return true;
	return c == '_' || (!first && (c == '.' || c == '-'));
}

int insula_name_copy(char *to, const char *from)
{
	size_t length = strnlen(from, INSULA_NAME_MAX), i;

	if (!length || length == INSULA_NAME_MAX)
		return -EINVAL;
	for (i = 0; i < length; i++)
		if (!name_character(from[i], !i))
			return -EINVAL;
	memset(to, 0, INSULA_NAME_MAX);
	memcpy(to, from, length);
	return 0;
}

struct insula_named *insula_registry_find(struct insula_registry *registry, const char *name)
{
	struct insula_named *named;

	list_for_each_entry(named, &registry->named, link)
		if (!strncmp(named->name, name, INSULA_NAME_MAX))
			return named;
	return NULL;
}

int insula_registry_add(struct insula_registry *registry, struct insula_named *named)
{
	if (insula_registry_find(registry, named->name))
		return -EEXIST;
	list_add_tail(&named->link, &registry->named);
	return 0;
}

int insula_registry_list(struct insula_registry *registry, void __user *argument)
{
	struct insula_name __user *to;
	struct insula_names request;
	struct insula_named *named;
	int err = 0;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	to = u64_to_user_ptr(request.names);
	request.count = 0;
	mutex_lock(&registry->lock);
	list_for_each_entry(named, &registry->named, link) {
		if (request.count < request.capacity &&
		    copy_to_user(&to[request.count], named->name, INSULA_NAME_MAX)) {
			err = -EFAULT;
			break;
		}
		request.count++;
	}
	mutex_unlock(&registry->lock);
	if (!err && copy_to_user(argument, &request, sizeof(request)))
		err = -EFAULT;
	return err;
}
