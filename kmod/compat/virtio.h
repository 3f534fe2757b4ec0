/* SPDX-License-Identifier: GPL-2.0-only */
/* What differs between kernels in how a virtio transport is asked for virtqueues. */
#ifndef INSULA_COMPAT_VIRTIO_H
#define INSULA_COMPAT_VIRTIO_H

#include <linux/virtio.h>
#include <linux/virtio_config.h>

/*
 * INSULA_VQ_INFOS: the parameters of virtio_config_ops.find_vqs that tell what the queues
 * are to be; insula_vq_info(i): what one of them is to be.
 *
 * 6.11, c502eb85c34e ("virtio: introduce virtio_queue_info struct and find_vqs_info()")
 */
#ifndef INSULA_HAS_VIRTQUEUE_INFO
struct virtqueue_info {
	const char *name;
	vq_callback_t *callback;
	bool ctx;
};

#define INSULA_VQ_INFOS	\
	vq_callback_t *callbacks[], const char * const names[], const bool *contexts
#define insula_vq_info(i)			\
	((struct virtqueue_info) {		\
		.name = names[i],		\
		.callback = callbacks[i],	\
		.ctx = contexts && contexts[i],	\
	})
#else
#define INSULA_VQ_INFOS		struct virtqueue_info infos[]
#define insula_vq_info(i)	(infos[i])
#endif

#endif
