/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * insula_net.h - what a lightweight kernel asks a network server: the calls of programs on their
 * sockets (messages: insula_server.h)
 *
 * The kernel knows which descriptors of which programs are sockets of which server. A call on one
 * of these becomes a request, whose sender is the calling thread. Word 0 of a request is the
 * socket's handle. The kernel chooses the handles, and uses none twice. Word 0 of the reply is the
 * call's result, as of a system call: a value, or a negative error number; word 1 is what the
 * socket is ready for from then on: bits of poll(2), POLLRDHUP included.
 *
 * A server replies to each request at once: what cannot be done now fails with EAGAIN (or
 * EINPROGRESS), and the kernel has the program wait. It learns what for from the server, which
 * announces each change of a socket's readiness that follows from no request, and each arrival of
 * data or of a connection, by a reply to no request (number 0). Its words:
 *
 *	0	the handle
 *	1	what the socket is ready for now
 *	2	POLLIN if something has arrived, POLLOUT if there is more room: events for those who
 *		wait for changes (EPOLLET)
 *	5	INSULA_ANNOUNCE_SOCKET
 *
 * Only the server of a socket's own endpoint can announce; of sockets that have gone nothing
 * follows. A server that ends takes its sockets with it: the kernel has their calls fail with
 * ECONNRESET. The next server of that name does not know them, and says so (ECONNRESET).
 *
 * Addresses are of IPv4, in one word: address << 16 | port, both in the order of the host's
 * numbers; INSULA_NET_NONE for none.
 */
#ifndef INSULA_NET_H
#define INSULA_NET_H

#include <linux/types.h>

#define INSULA_NET_NONE	(~0ULL)

/* Types, levels, options and flags are Linux', as of the call of that name. */
enum insula_net_operation {
	INSULA_NET_SOCKET = 1,		/* 1: SOCK_STREAM or SOCK_DGRAM */
	INSULA_NET_RELEASE = 2,		/* the last descriptor is closed; the reply has no effect */
	INSULA_NET_BIND = 3,		/* 1: address */
	INSULA_NET_LISTEN = 4,		/* 1: backlog */
	INSULA_NET_ACCEPT = 5,		/* 1: handle of the connection. Word 2: the peer's address.
					 * What the connection is ready for is announced
					 */
	INSULA_NET_CONNECT = 6,		/* 1: address; none: AF_UNSPEC. EINPROGRESS: it is ready for
					 * writing when it is connected, or has failed (SO_ERROR)
					 */
	INSULA_NET_SEND = 7,		/* 1: address or none. Reads what is to be sent */
	INSULA_NET_RECEIVE = 8,		/* 1: MSG_PEEK, MSG_TRUNC. Writes what was received. Word 2:
					 * the sender's address, 3: size of the datagram
					 */
	INSULA_NET_SHUTDOWN = 9,	/* 1: how */
	INSULA_NET_SET_OPTION = 10,	/* 1: level, 2: option. Reads its value */
	INSULA_NET_GET_OPTION = 11,	/* 1: level, 2: option. Writes its value. Result: its size */
	INSULA_NET_NAMES = 12,		/* Word 2: own address, 3: the peer's, or none */
	INSULA_NET_QUEUED = 13,		/* Result: bytes that can be received (FIONREAD) */
};

#endif /* INSULA_NET_H */
