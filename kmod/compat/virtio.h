/* SPDX-License-Identifier: GPL-2.0-only */
/* Differences between kernels in virtio_config_ops.find_vqs. */
#ifndef INSULA_COMPAT_VIRTIO_H
#define INSULA_COMPAT_VIRTIO_H

#include <linux/virtio.h>
#include <linux/virtio_config.h>

/*
 * INSULA_VQ_INFOS: parameters of find_vqs that describe the queues; insula_vq_info(i): those of
 * queue i.
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
