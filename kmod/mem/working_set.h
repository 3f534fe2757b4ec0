/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef INSULA_WORKING_SET_H
#define INSULA_WORKING_SET_H

struct insula_memory;

/* INSULA_MEMORY_STORE_SET. -EINVAL: the object shows no other one; -ENOMEM: a part is stored. */
int insula_working_set_store(struct insula_memory *memory);

/*
 * INSULA_MEMORY_LIST_SET, INSULA_MEMORY_GIVE_SET: with their argument in user space. -EINVAL: the
 * object shows another one, or the set is not valid; -EEXIST: it has one.
 */
int insula_working_set_list(struct insula_memory *memory, void __user *argument);
int insula_working_set_give(struct insula_memory *memory, void __user *argument);

/* INSULA_MEMORY_OWN_SET. -EINVAL, the same; or an error of insula_shown_own(). */
int insula_working_set_own(struct insula_memory *memory);

#endif
