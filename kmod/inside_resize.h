/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_INSIDE_RESIZE_H
#define INSULA_INSIDE_RESIZE_H

/* Do what the base asks for by its orders from now on. */
int insula_resize_init(void);
void insula_resize_exit(void);

#endif
