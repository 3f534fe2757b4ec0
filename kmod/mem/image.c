// SPDX-License-Identifier: GPL-2.0-only
/*
 * Images: memory objects kept under a name, without a process that has them open. Their content
 * is opaque to the module.
 */
#include "insula_module.h"

#include <linux/err.h>
#include <linux/file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "mem/image.h"
#include "mem/memory.h"
#include "node/registry.h"

struct image {
	struct insula_named named;
	struct file *memory;
};

static struct insula_registry images = INSULA_REGISTRY(images);

static int image_copy_name(char *to, void __user *argument)
{
	struct insula_name name;

	if (copy_from_user(&name, argument, sizeof(name)))
		return -EFAULT;
	return insula_name_copy(to, name.name);
}

static void image_free(struct image *image)
{
	fput(image->memory);
	kfree(image);
}

/* Add an image to the registry, atomically replacing one of the same name if asked to. */
static int image_publish(struct image *image, struct insula_description_data *description,
			 bool replace)
{
	struct insula_named *old;
	int err;

	mutex_lock(&images.lock);
	old = replace ? insula_registry_find(&images, image->named.name) : NULL;
	if (old)
		list_del(&old->link);
	err = insula_registry_add(&images, &image->named);
	if (!err)
		insula_memory_describe(image->memory, description);
	mutex_unlock(&images.lock);
	if (old)
		image_free(container_of(old, struct image, named));
	return err;
}

static int image_claim_and_publish(struct image *image, const struct insula_image *request,
				   bool replace)
{
	struct insula_description_data *description;
	int err;

	description = insula_description_copy(request->description, request->description_size);
	if (IS_ERR(description))
		return PTR_ERR(description);
	err = insula_memory_claim(image->memory);
	if (err)
		goto free;
	err = image_publish(image, description, replace);
	if (!err)
		return 0;
	insula_memory_unclaim(image->memory);
free:
	insula_description_put(description);
	return err;
}

static int image_add(void __user *argument, bool replace)
{
	struct insula_image request;
	struct image *image;
	int err;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	image = kzalloc(sizeof(*image), GFP_KERNEL);
	if (!image)
		return -ENOMEM;
	err = insula_name_copy(image->named.name, request.name);
	if (err)
		goto free;
	image->memory = insula_memory_get(request.memory);
	if (IS_ERR(image->memory)) {
		err = PTR_ERR(image->memory);
		goto free;
	}
	err = image_claim_and_publish(image, &request, replace);
	if (!err)
		return 0;
	fput(image->memory);
free:
	kfree(image);
	return err;
}

int insula_image_add(void __user *argument)
{
	return image_add(argument, false);
}

int insula_image_replace(void __user *argument)
{
	return image_add(argument, true);
}

int insula_image_open(void __user *argument)
{
	char name[INSULA_NAME_MAX];
	struct insula_named *named;
	int err = image_copy_name(name, argument);

	if (err)
		return err;
	mutex_lock(&images.lock);
	named = insula_registry_find(&images, name);
	err = named ? insula_memory_install(container_of(named, struct image, named)->memory)
		    : -ENOENT;
	mutex_unlock(&images.lock);
	return err;
}

int insula_image_remove(void __user *argument)
{
	char name[INSULA_NAME_MAX];
	struct insula_named *named;
	int err = image_copy_name(name, argument);

	if (err)
		return err;
	mutex_lock(&images.lock);
	named = insula_registry_find(&images, name);
	if (named)
		list_del(&named->link);
	mutex_unlock(&images.lock);
	if (!named)
		return -ENOENT;
	image_free(container_of(named, struct image, named));
	return 0;
}

int insula_image_list(void __user *argument)
{
	return insula_registry_list(&images, argument);
}
