/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * insula_server.h - messages between processes of one lightweight-kernel node: system calls that
 * this kernel has beside Linux'
 *
 * A server creates an *endpoint* under a name; others open it, and get a handle, a number that
 * means something to their own process only. Children do not inherit handles, and execve(2)
 * closes them.
 *
 *	handle = INSULA_SYS_ENDPOINT_CREATE(name, length, flags = 0)
 *	handle = INSULA_SYS_ENDPOINT_OPEN(name, length, flags = 0)
 *		INSULA_SYS_ENDPOINT_CLOSE(handle)
 *
 * A client sends a request and waits for the reply. A request is an operation and some words, and
 * two parts of the client's memory: one that the server may read and one that it may write, each
 * only as long as the request lasts. To nothing else of the client's memory has the server
 * access, nor the client to the server's.
 *
 *		INSULA_SYS_MESSAGE_SEND(handle, message, timeout_ns)
 *
 * A server receives requests: one if there is one, as many as are there up to a number, the most
 * urgent (by the real-time priority of the sender) first, else in the order of their arrival. It
 * reads and writes the client's memory in parts as it likes, and replies in any order, from any
 * thread.
 *
 *	count = INSULA_SYS_MESSAGE_RECEIVE(handle, messages, count, replies, count, timeout_ns)
 *	bytes = INSULA_SYS_MESSAGE_READ(handle, request, offset, address, length)
 *	bytes = INSULA_SYS_MESSAGE_WRITE(handle, request, offset, address, length)
 *
 * Both copy INSULA_MESSAGE_COPY_MAX bytes at most, and return how many.
 *
 * A reply to request 0, a number that no request has, announces something to the kernel: its last
 * word says what (insula_net.h, insula_files.h). Replies and announcements of one call take effect
 * in their order.
 *
 * INSULA_SYS_MESSAGE_RECEIVE replies first, then receives: a server in a loop enters the kernel
 * once for each request. It does not wait if it shall receive none (count 0). If the client's
 * core is the server's, the kernel switches straight from one to the other.
 *
 * What endpoints a node has, and how much their servers have to do, any program can ask; and it
 * can put a server's threads on other cores, as sched_setaffinity(2) does for a thread: all but
 * those that serve another endpoint of the same process. A thread serves the endpoint from which
 * it has received a request last, or, before the first, at which it has waited last. Requests that
 * are under way are not disturbed.
 *
 *	all = INSULA_SYS_ENDPOINT_LIST(endpoints, count)
 *		INSULA_SYS_ENDPOINT_PLACE(name, length, cores, bytes)
 *
 * The list is in the order of the names; if there are more than count, the first ones. A set of
 * cores has a bit for each, as for sched_setaffinity(2).
 *
 * Timeouts are in ns, INSULA_MESSAGE_FOREVER for none. A request whose server has gone before it
 * replied ends with ECONNRESET; one that no server has received waits for the next server of that
 * name, until its timeout. A client that is interrupted (EINTR), whose timeout ends (ETIMEDOUT)
 * or who dies takes its request back, also from the server, whose further calls for it fail with
 * ESRCH; replies to it have no effect.
 *
 * Errors beside those: EBADF (no such handle, or of the wrong side), EFAULT, EINVAL, ENOENT
 * (nobody has created that name), EEXIST (it has a server), EMFILE, ENOMEM, EMSGSIZE (more than
 * INSULA_MESSAGE_BATCH_MAX at once, or a reply with more than INSULA_MESSAGE_COPY_MAX bytes). On
 * Linux all of these calls fail with ENOSYS.
 */
#ifndef INSULA_SERVER_H
#define INSULA_SERVER_H

#include <linux/types.h>

#define INSULA_SYS_ENDPOINT_CREATE	1024
#define INSULA_SYS_ENDPOINT_OPEN	1025
#define INSULA_SYS_ENDPOINT_CLOSE	1026
#define INSULA_SYS_MESSAGE_SEND		1027
#define INSULA_SYS_MESSAGE_RECEIVE	1028
#define INSULA_SYS_MESSAGE_READ		1029
#define INSULA_SYS_MESSAGE_WRITE	1030
#define INSULA_SYS_ENDPOINT_LIST	1031
#define INSULA_SYS_ENDPOINT_PLACE	1032

/* Longest name of an endpoint, in bytes. No byte is 0 or '/'. */
#define INSULA_ENDPOINT_NAME_MAX	64
/* Most handles of a process. */
#define INSULA_ENDPOINT_HANDLES_MAX	256
/* Words of a set of cores. */
#define INSULA_ENDPOINT_CORES_WORDS	4
/* Words of a message. */
#define INSULA_MESSAGE_WORDS		6
/* Most requests received, and replies made, by one call. */
#define INSULA_MESSAGE_BATCH_MAX	64
/* Most bytes that one call copies for a request: the core does nothing else meanwhile. */
#define INSULA_MESSAGE_COPY_MAX		(1ULL << 20)
/* No timeout. */
#define INSULA_MESSAGE_FOREVER		(~0ULL)

/* What is announced: the last word of a reply to request 0. */
enum insula_announcement {
	INSULA_ANNOUNCE_SOCKET = 0,		/* what a socket is ready for */
	INSULA_ANNOUNCE_FILE_PAGE = 1,		/* a page of a file is shared */
	INSULA_ANNOUNCE_FILE_INVALID = 2,	/* pages of a file are not any more */
	INSULA_ANNOUNCE_FILE_CHANGED = 3,	/* ask for the next read of a file */
	INSULA_ANNOUNCE_FILE_MAPPED = 4,	/* a page of a file that is mapped */
};

/* A request, as the client sends it and gets it back, and as the server receives it. */
struct insula_server_message {
	__u64 request;		/* server: its number; client: 0 */
	__u32 operation;
	__u32 sender;		/* server: the client's process id; client: 0 */
	/* Client: the reply's, when the call returns. */
	__u64 words[INSULA_MESSAGE_WORDS];
	/*
	 * Client: what the server may read. Server: the size of that, address 0.
	 */
	__u64 readable_address;
	__u64 readable_length;
	/*
	 * Client: what the server may write. Server: before the call, where it wants the first
	 * bytes of what it may read (length 0: none); then the size of what it may write, address
	 * 0.
	 */
	__u64 writable_address;
	__u64 writable_length;
};

/* A reply. */
struct insula_server_reply {
	__u64 request;		/* Its number; 0: see above. */
	__u64 words[INSULA_MESSAGE_WORDS];
	/* The server's, copied to the start of what it may write (length 0: none). */
	__u64 data_address;
	__u64 data_length;
};

/* An endpoint, as it is listed. */
struct insula_server_endpoint {
	char name[INSULA_ENDPOINT_NAME_MAX];	/* Followed by zeros. */
	__u32 server;		/* Process id of its server; 0 if it has none now. */
	__u32 threads;		/* Threads of that process that serve no other endpoint. */
	__u32 waiting;		/* Those that wait for requests. */
	__u32 queued;		/* Requests that nobody has received. */
	__u32 served;		/* Requests that the server has. */
	__u32 reserved;		/* 0. */
	__u64 received;		/* Requests that its servers have received. */
	__u64 crossings;	/* Those from another core than the server's. */
	__u64 interrupts;	/* Interrupts that its servers have received (insula_pci.h). */
	__u64 busy_ns;		/* Processor time of these threads. */
	__u64 cores[INSULA_ENDPOINT_CORES_WORDS];	/* On which the first may run. */
};

#endif /* INSULA_SERVER_H */
