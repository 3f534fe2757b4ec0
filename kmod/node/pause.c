// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pausing of confined nodes: each core's monitor is asked to execute its guest no more, and later
 * to resume it. An NMI makes the guest exit whatever it does, so a core answers at once.
 */
#include "node/pause.h"

#include <linux/bits.h>
#include <linux/iopoll.h>
#include <linux/lockdep.h>

#include "insula_monitor.h"
#include "node/monitor_cores.h"
#include "node/nested_table.h"
#include "node/node_state.h"

/* Far beyond what an NMI takes, also on an emulated machine. */
#define ANSWER_TIMEOUT_US	(5 * USEC_PER_SEC)
#define ANSWER_POLL_US		20

static const struct insula_monitor_cores *pause_cores(const struct insula_node *node)
{
	return insula_nested_table_cores(node->vmm.nested);
}

static bool pause_answered(const struct insula_node *node, bool paused)
{
	const struct insula_monitor_cores *cores = pause_cores(node);
	u32 i;

	for (i = 0; i < cores->count; i++)
		/* Pairs with the release that follows its registers. */
		if (smp_load_acquire(&cores->core[i].area->paused) != paused)
			return false;
	return true;
}

static void pause_request(const struct insula_node *node, u64 request)
{
	const struct insula_monitor_cores *cores = pause_cores(node);
	u32 i;

	for (i = 0; i < cores->count; i++)
		insula_monitor_core_request(&cores->core[i], request);
}

/* A core that has not seen the request to pause yet must not find it after that to resume. */
static void pause_cancel(const struct insula_node *node)
{
	const struct insula_monitor_cores *cores = pause_cores(node);
	u32 i;

	for (i = 0; i < cores->count; i++)
		insula_monitor_core_withdraw(&cores->core[i], INSULA_MONITOR_REQUEST_PAUSE);
	pause_request(node, INSULA_MONITOR_REQUEST_RESUME);
}

/* Whether they have answered, or never will, since their monitor has ended the node. */
static bool pause_is_over(const struct insula_node *node, bool paused)
{
	return pause_answered(node, paused) ||
	       READ_ONCE(*insula_node_monitor_ended(node)) != INSULA_MONITOR_RUNS;
}

static int pause_wait(const struct insula_node *node, bool paused)
{
	bool over;
	int err = read_poll_timeout(pause_is_over, over, over, ANSWER_POLL_US,
				    ANSWER_TIMEOUT_US, false, node, paused);

	return err || pause_answered(node, paused) ? err : -EALREADY;
}

static int pause_check(const struct insula_node *node)
{
	lockdep_assert_held(&node->lock);
	if (!insula_node_confined(node))
		return -EOPNOTSUPP;
	return node->state == INSULA_RUNNING ? 0 : -EALREADY;
}

int insula_node_pause(struct insula_node *node)
{
	int err = pause_check(node);

	if (err || node->paused)
		return err;
	/* What it has of the base can be taken back only with the help of its kernel. */
	if (node->slots || node->grants)
		return -EBUSY;
	pause_request(node, INSULA_MONITOR_REQUEST_PAUSE);
	err = pause_wait(node, true);
	if (err) {
		pause_cancel(node);
		return err;
	}
	node->paused = true;
	insula_node_changed(node);
	return 0;
}

int insula_node_resume(struct insula_node *node)
{
	int err = pause_check(node);

	if (err || !node->paused)
		return err;
	pause_request(node, INSULA_MONITOR_REQUEST_RESUME);
	err = pause_wait(node, false);
	if (err)
		return err;
	node->paused = false;
	insula_node_changed(node);
	return 0;
}
