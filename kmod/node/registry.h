/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_REGISTRY_H
#define INSULA_REGISTRY_H

#include <linux/list.h>
#include <linux/mutex.h>

#include "insula_module.h"

/* A set of named objects, oldest first. Locked by the caller. */
struct insula_registry {
	struct mutex lock;	/* all below */
	struct list_head named;
};

#define INSULA_REGISTRY(name)	{			\
	.lock = __MUTEX_INITIALIZER((name).lock),	\
	.named = LIST_HEAD_INIT((name).named),		\
}

/* Embedded in objects of a registry. */
struct insula_named {
	struct list_head link;
	char name[INSULA_NAME_MAX];
};

/* Validate and copy a name: 1 to 63 of [A-Za-z0-9._-], no leading dot or dash. -EINVAL. */
int insula_name_copy(char *to, const char *from);

struct insula_named *insula_registry_find(struct insula_registry *registry, const char *name);

/* -EEXIST if the name is taken. */
int insula_registry_add(struct insula_registry *registry, struct insula_named *named);

/* It is in the registry. -EEXIST if another has the name. */
int insula_registry_rename(struct insula_registry *registry, struct insula_named *named,
			   const char *name);

/* Both are in the registry. Neither name is ever without its end. */
void insula_registry_exchange(struct insula_registry *registry, struct insula_named *one,
			      struct insula_named *other);

/* INSULA_IMAGE_LIST and INSULA_NODE_LIST. Takes the lock. */
int insula_registry_list(struct insula_registry *registry, void __user *argument);

#endif
