/* SPDX-License-Identifier: GPL-2.0-only */
/* Faults that this driver makes: what its files share. */
#ifndef INSULA_FAULT_H
#define INSULA_FAULT_H

#include <linux/completion.h>
#include <linux/kallsyms.h>
#include <linux/list.h>
#include <linux/sched.h>
#include <linux/types.h>

#include <asm/desc_defs.h>

/* One fault. */
struct fault {
	const char *name;
	int (*inject)(void);
	/* Undoes it; NULL if that cannot be done. */
	void (*undo)(void);
};

/* The faults of each file; the last one has no name. */
extern const struct fault image_faults[];
extern const struct fault list_faults[];
extern const struct fault credentials_faults[];
extern const struct fault hang_faults[];
extern const struct fault lock_faults[];
extern const struct fault memory_faults[];
extern const struct fault operations_faults[];

/* Parameters: see main.c. */
extern int process;
extern uint core;
extern bool begin;

/* Address of any symbol of the kernel; 0 if there is none. */
extern typeof(kallsyms_lookup_name) *lookup;
/* A function that no fault calls. */
void fault_target(void);
/* Frees what faults of operations lead to. */
void operations_end(void);

/* Bytes that are not what they were: exchanging them again undoes it. */
struct exchange {
	unsigned long at;
	u8 bytes[sizeof(gate_desc)];
	size_t size;
};

int exchange_make(struct exchange *exchange, unsigned long at, const void *bytes, size_t size);
void exchange_undo(struct exchange *exchange);

/* A thread of the kernel, and what ends it. */
struct fault_thread {
	struct task_struct *task;
	struct completion done;
};

int fault_thread_run(struct fault_thread *thread, int (*function)(void *));
int fault_thread_run_on_core(struct fault_thread *thread, int (*function)(void *));
/* Waits until it is ended: `data` is the struct fault_thread. */
int fault_thread_wait(void *data);
void fault_thread_end(struct fault_thread *thread);

#endif
