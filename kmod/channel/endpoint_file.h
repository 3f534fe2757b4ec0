/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_ENDPOINT_FILE_H
#define INSULA_ENDPOINT_FILE_H

#include <linux/types.h>

struct insula_area;
struct insula_endpoint;

int insula_endpoint_files_init(void);
void insula_endpoint_files_exit(void);

/* Initialize what only descriptors need. */
void insula_endpoint_file_init(struct insula_endpoint *endpoint);

/* INSULA_CHANNEL_OPEN with its argument in user space: returns a descriptor. */
int insula_endpoint_file_open(struct insula_area *area, void __user *argument);

/* The last file of an ioeventfd was closed. In any context. */
void insula_endpoint_file_eventfd_released(struct insula_endpoint *endpoint);

#endif
