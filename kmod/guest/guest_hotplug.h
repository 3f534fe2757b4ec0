/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_GUEST_HOTPLUG_H
#define INSULA_GUEST_HOTPLUG_H

/* Start handling hotplug requests of the base. */
int insula_guest_hotplug_init(void);
void insula_guest_hotplug_exit(void);

#endif
