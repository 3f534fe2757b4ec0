// SPDX-License-Identifier: GPL-2.0-only
#include "insula_module.h"

#include <linux/err.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "node/description.h"

struct insula_description_data *insula_description_copy(u64 from, u32 size)
{
	struct insula_description_data *description;

	if (size > INSULA_DESCRIPTION_MAX)
		return ERR_PTR(-E2BIG);
	description = kvmalloc(struct_size(description, bytes, size), GFP_KERNEL);
	if (!description)
		return ERR_PTR(-ENOMEM);
	kref_init(&description->refs);
	description->size = size;
	if (copy_from_user(description->bytes, u64_to_user_ptr(from), size)) {
		kvfree(description);
		return ERR_PTR(-EFAULT);
	}
	return description;
}

int insula_description_read(const struct insula_description_data *description,
			    void __user *argument)
{
	struct insula_description request;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	request.size = description->size;
	if (copy_to_user(u64_to_user_ptr(request.bytes), description->bytes,
			 min(request.size, request.capacity)))
		return -EFAULT;
	return copy_to_user(argument, &request, sizeof(request)) ? -EFAULT : 0;
}

struct insula_description_data *
insula_description_get(struct insula_description_data *description)
{
	kref_get(&description->refs);
	return description;
}

static void description_free(struct kref *refs)
{
	kvfree(container_of(refs, struct insula_description_data, refs));
}

void insula_description_put(struct insula_description_data *description)
{
	if (description)
		kref_put(&description->refs, description_free);
}
