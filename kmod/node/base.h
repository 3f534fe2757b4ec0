/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_BASE_H
#define INSULA_BASE_H

/* Register for the base's reboot, kexec, suspend and panic. */
int insula_base_init(void);
void insula_base_exit(void);

#endif
