/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_IMAGE_H
#define INSULA_IMAGE_H

/* INSULA_IMAGE_* with their argument in user space. */
int insula_image_add(void __user *argument);
int insula_image_replace(void __user *argument);
int insula_image_open(void __user *argument);
int insula_image_remove(void __user *argument);
int insula_image_list(void __user *argument);

#endif
