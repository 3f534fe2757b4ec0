// SPDX-License-Identifier: GPL-2.0-only
#include "insula_module.h"

#include <linux/ctype.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "node/registry.h"

static bool registry_name_character(char c, bool first)
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
		if (!registry_name_character(from[i], !i))
			return -EINVAL;
	memset(to, 0, INSULA_NAME_MAX);
	memcpy(to, from, length);
	return 0;
}

struct insula_named *insula_registry_find(struct insula_registry *registry, const char *name)
{
	struct insula_named *named;

	lockdep_assert_held(&registry->lock);
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

int insula_registry_rename(struct insula_registry *registry, struct insula_named *named,
			   const char *name)
{
	struct insula_named *other = insula_registry_find(registry, name);

	if (other && other != named)
		return -EEXIST;
	memcpy(named->name, name, INSULA_NAME_MAX);
	return 0;
}

void insula_registry_exchange(struct insula_registry *registry, struct insula_named *one,
			      struct insula_named *other)
{
	char name[INSULA_NAME_MAX];

	lockdep_assert_held(&registry->lock);
	memcpy(name, one->name, sizeof(name));
	memmove(one->name, other->name, sizeof(one->name));
	memcpy(other->name, name, sizeof(other->name));
}

static u32 registry_count_names(struct insula_registry *registry)
{
	struct insula_named *named;
	u32 count = 0;

	mutex_lock(&registry->lock);
	list_for_each_entry(named, &registry->named, link)
		count++;
	mutex_unlock(&registry->lock);
	return count;
}

/* Copy at most `room` names. Returns the number of all. */
static u32 registry_copy_names(struct insula_registry *registry, char (*names)[INSULA_NAME_MAX],
			       u32 room)
{
	struct insula_named *named;
	u32 count = 0;

	mutex_lock(&registry->lock);
	list_for_each_entry(named, &registry->named, link) {
		if (count < room)
			memcpy(names[count], named->name, INSULA_NAME_MAX);
		count++;
	}
	mutex_unlock(&registry->lock);
	return count;
}

/* Copied out unlocked: the caller's memory may be a node's, and fault for long. */
int insula_registry_list(struct insula_registry *registry, void __user *argument)
{
	char (*names)[INSULA_NAME_MAX] = NULL;
	struct insula_names request;
	int err = 0;
	u32 room;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	/* Retry if names were added meanwhile, so that `count` matches the copied names. */
	do {
		kvfree(names);
		room = min(request.capacity, registry_count_names(registry));
		names = kvcalloc(room, sizeof(*names), GFP_KERNEL);
		if (!names && room)
			return -ENOMEM;
		request.count = registry_copy_names(registry, names, room);
	} while (room < min(request.count, request.capacity));
	room = min(room, request.count);
	if (copy_to_user(u64_to_user_ptr(request.names), names, room * sizeof(*names)) ||
	    copy_to_user(argument, &request, sizeof(request)))
		err = -EFAULT;
	kvfree(names);
	return err;
}
