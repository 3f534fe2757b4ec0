// SPDX-License-Identifier: GPL-2.0-only
/*
 * The module in a Linux node: it finds the node's channels by their ACPI device and
 * gives their other ends.
 *
 * The memory is the node's own, reserved in its memory map, and written by the base
 * before the node began; what it says is checked nevertheless.
 */
#include "inside.h"

#include <linux/acpi.h>
#include <linux/err.h>
#include <linux/io.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/string.h>

#include "borrow.h"
#include "channel.h"
#include "inside_resize.h"
#include "own_end.h"

#define DEVICE_ID	"INSU0001"

static struct {
	void *memory;
	struct insula_area *area;
} inside;

bool insula_inside_found(void)
{
	return acpi_dev_present(DEVICE_ID, NULL, -1);
}

static int join(const struct resource *resource)
{
	struct insula_area_place place = { .start = resource->start, .memory = inside.memory };
	struct insula_area_header header;
	int err;

	memcpy(&header, inside.memory, sizeof(header));
	if (header.magic != INSULA_CHANNEL_MAGIC || header.revision != INSULA_CHANNEL_REVISION) {
		pr_err("the base lays out channels in another way; use the same version in both\n");
		return -EPROTO;
	}
	err = insula_area_check(header.count, header.slots);
	if (err || INSULA_AREA_SIZE(header.count, header.slots) > resource_size(resource)) {
		pr_err("the base's channels make no sense\n");
		return -EINVAL;
	}
	place.count = header.count;
	place.slots = header.slots;
	inside.area = insula_area_join(&place);
	if (IS_ERR(inside.area))
		return PTR_ERR(inside.area);
	/* It has found the page by which it can be ended, or its configuration is of no use. */
	if (IS_ENABLED(CONFIG_INTEL_TXT))
		insula_area_tell(inside.area, INSULA_AREA_ENDS_BY_CALL);
	err = insula_resize_init();
	if (err)
		goto put;
	err = insula_borrow_init();
	if (!err)
		return 0;
	insula_resize_exit();
put:
	insula_area_put(inside.area);
	return err;
}

static int probe(struct platform_device *device)
{
	struct resource *resource = platform_get_resource(device, IORESOURCE_MEM, 0);
	int err;

	if (inside.memory)
		return -EBUSY;
	if (!resource || resource_size(resource) < sizeof(struct insula_area_header))
		return -ENODEV;
	inside.memory = memremap(resource->start, resource_size(resource), MEMREMAP_WB);
	if (!inside.memory)
		return -ENOMEM;
	err = join(resource);
	if (err) {
		memunmap(inside.memory);
		inside.memory = NULL;
	}
	return err;
}

static const struct acpi_device_id ids[] = {
	{ DEVICE_ID },
	{ }
};
MODULE_DEVICE_TABLE(acpi, ids);

static struct platform_driver driver = {
	.driver = {
		.name = "insula",
		.acpi_match_table = ids,
		/* Descriptors hold the module, so it goes only with all ends closed. */
		.suppress_bind_attrs = true,
	},
	.probe = probe,
};

int insula_inside_init(void)
{
	int err = platform_driver_register(&driver);

	if (!err && !inside.memory) {
		platform_driver_unregister(&driver);
		err = -ENODEV;
	}
	return err;
}

void insula_inside_exit(void)
{
	platform_driver_unregister(&driver);
	insula_borrow_exit();
	insula_resize_exit();
	insula_area_put(inside.area);
	memunmap(inside.memory);
}

int insula_inside_claim(struct insula_own_end *end, u32 index)
{
	return inside.area ? insula_own_end_claim(end, inside.area, index) : -ENODEV;
}
EXPORT_SYMBOL_GPL(insula_inside_claim);

int insula_inside_open(void __user *argument)
{
	return insula_channel_open(inside.area, argument);
}
