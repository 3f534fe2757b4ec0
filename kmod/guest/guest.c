// SPDX-License-Identifier: GPL-2.0-only
/*
 * Guest side: in a Linux node the module finds the node's channels by their ACPI device and
 * provides their endpoints.
 *
 * The channel area is in the node's own memory, reserved in its memory map, and initialized by
 * the base before the node started; it is validated nevertheless.
 */
#include "guest/guest.h"

#include <linux/acpi.h>
#include <linux/err.h>
#include <linux/io.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/string.h>

#include "channel/area.h"
#include "channel/endpoint.h"
#include "channel/endpoint_file.h"
#include "guest/grant_import.h"
#include "guest/guest_hotplug.h"

#define DEVICE_ID	"INSU0001"

static struct {
	void *memory;
	struct insula_area *area;
} guest;

bool insula_guest_found(void)
{
	return acpi_dev_present(DEVICE_ID, NULL, -1);
}

static int guest_join(const struct resource *resource)
{
	struct insula_area_place place = { .start = resource->start, .memory = guest.memory };
	struct insula_area_header header;
	int err;

	memcpy(&header, guest.memory, sizeof(header));
	if (header.magic != INSULA_CHANNEL_MAGIC || header.revision != INSULA_CHANNEL_REVISION) {
		pr_err("channel revision differs from the base's; use the same version in both\n");
		return -EPROTO;
	}
	err = insula_area_check(header.count, header.slots);
	if (err || INSULA_AREA_SIZE(header.count, header.slots) > resource_size(resource)) {
		pr_err("invalid channel area\n");
		return -EINVAL;
	}
	place.count = header.count;
	place.slots = header.slots;
	guest.area = insula_area_join(&place);
	if (IS_ERR(guest.area))
		return PTR_ERR(guest.area);
	/* With TXT support Linux has found the page by which it resets by a call. */
	if (IS_ENABLED(CONFIG_INTEL_TXT))
		insula_area_set_node_flags(guest.area, INSULA_AREA_RESETS_BY_CALL);
	err = insula_guest_hotplug_init();
	if (err)
		goto put;
	err = insula_grant_import_init();
	if (!err)
		return 0;
	insula_guest_hotplug_exit();
put:
	insula_area_put(guest.area);
	return err;
}

static int guest_probe(struct platform_device *device)
{
	struct resource *resource = platform_get_resource(device, IORESOURCE_MEM, 0);
	int err;

	if (guest.memory)
		return -EBUSY;
	if (!resource || resource_size(resource) < sizeof(struct insula_area_header))
		return -ENODEV;
	guest.memory = memremap(resource->start, resource_size(resource), MEMREMAP_WB);
	if (!guest.memory)
		return -ENOMEM;
	err = guest_join(resource);
	if (err) {
		memunmap(guest.memory);
		guest.memory = NULL;
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
		/* Open endpoints hold the module: unbinding is by unloading only. */
		.suppress_bind_attrs = true,
	},
	.probe = guest_probe,
};

int insula_guest_init(void)
{
	int err = platform_driver_register(&driver);

	if (!err && !guest.memory) {
		platform_driver_unregister(&driver);
		err = -ENODEV;
	}
	return err;
}

void insula_guest_exit(void)
{
	platform_driver_unregister(&driver);
	insula_grant_import_exit();
	insula_guest_hotplug_exit();
	insula_area_put(guest.area);
	memunmap(guest.memory);
}

struct insula_endpoint *insula_guest_endpoint_open(u32 index)
{
	return guest.area ? insula_endpoint_open(guest.area, index) : ERR_PTR(-ENODEV);
}
EXPORT_SYMBOL_GPL(insula_guest_endpoint_open);

int insula_guest_open(void __user *argument)
{
	return insula_endpoint_file_open(guest.area, argument);
}
