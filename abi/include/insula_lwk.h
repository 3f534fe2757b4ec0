/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * insula_lwk.h - what the base and a lightweight kernel (LWK) share so that the base
 * executes an LWK program's system calls: delegation.
 *
 * A program on an LWK has a *proxy* on the base: a process whose address space is
 * empty but for its own small loop high up. It is entered by the program's pid, and it
 * has the program's open files, directory, terminal and rights, since those are the
 * proxy's. Each thread of the program has a thread of the proxy. In the proxy, the
 * program's part of the address space is one mapping of a *space* (insula.h): whatever
 * page Linux touches there is found in the program's own page table, and the same
 * physical page is mapped at the same address. So the proxy makes a call with the
 * very numbers that the program made it with, pointers within structures included;
 * nothing here knows what any call means.
 *
 * Place. The delegation area is a stretch of the node's memory that lies behind its
 * channels, if the memory of its ACPI device INSU0001 is longer than these. It is an
 * array of pages of 4096 bytes: struct insula_lwk_delegation, the counters of each
 * core and struct insula_lwk_calls (INSULA_LWK_COUNTERS_PAGES in all), then pages that
 * the base gives to processes:
 *
 *	process   two pages in a row: struct insula_lwk_process, struct insula_lwk_reach.
 *		  It is named by the number of the first. No program can write them.
 *	desks     sixteen struct insula_lwk_desk, of one process, which the proxy maps.
 *		  A desk is named by page number * 16 + its place in the page.
 *
 * Every word has one writer, the base's side or the LWK's, but for bitmaps whose bits
 * one side sets and the other takes, by atomic instructions. A side that reads what
 * the other writes reads it once and then checks it. What lies in desks and is said to
 * be the base's is the proxy's to write, so a program's user can forge it: it may
 * harm that program and nobody else. Hence the checks told below.
 *
 * A call. A thread's desk is a ring of one slot, since a thread waits for its call.
 * The LWK writes number and arguments, then, with release, the next turn; the proxy's
 * thread, which polls that word, executes the call, writes the answer and, with
 * release, the same turn. It is the LWK's move while answer_turn == turn. One cache
 * line goes each way, and nothing else happens as long as both poll.
 *
 *	       LWK's thread                       proxy's thread
 *	number, arguments; turn := n	->	(polls turn)
 *	(polls answer_turn)			the call, on the base
 *					<-	result; answer_turn := n
 *
 * Whoever polls in vain sleeps. The proxy's thread calls INSULA_SPACE_WAIT: the module
 * sets base_asleep, fences, looks at turn again. The LWK, after a turn, fences and
 * looks at base_asleep; if set, it sets the desk's bit in rung[] and, if the word was
 * zero, rings base_doorbell. The other way the LWK's core stores a doorbell of its own
 * to lwk_asleep, fences, looks at answer_turn again; the proxy, after an answer,
 * fences and looks at lwk_asleep; if set, it calls INSULA_SPACE_RING.
 *
 * A page that is not there. When Linux touches a page that the program's page table
 * does not map, or not for writing, the module answers on behalf of the proxy's thread
 * with INSULA_LWK_FAULT, in the middle of the call. The LWK treats it as a fault of the
 * thread that waits, and makes its next turn INSULA_LWK_RESOLVED. Then it goes on
 * waiting for an answer: the call's, or the next fault. To resolve a fault the LWK makes
 * no request on this desk and waits for nobody who does; so it holds no lock that a
 * fault needs while it makes a request, but for INSULA_LWK_RELEASE. A range is mapped ahead
 * of its use by a call that the LWK makes of itself: madvise(MADV_POPULATE_WRITE).
 *
 * Letting go. The base maps, or walks the page table, only after it has set the bit of
 * the 2 MiB window in the process's reach, with a full fence behind it. To use a frame or
 * a page-table page of a program for something else, or to take rights away, the LWK
 *
 *	1. clears or changes the entries, and has its own cores forget them,
 *	2. makes a full fence and looks at reach: if no bit of the range is set, the base
 *	   has nothing and will find nothing there. Else
 *	3. makes the request INSULA_LWK_RELEASE on a desk of the process and waits until it is
 *	   answered. Only if `released` in the process's page is its ticket then has the base
 *	   let go: no mapping and no walk is left of the range, and no I/O is under way in any
 *	   page of the program's memory that has been released, at this address or another,
 *	   but for the frames that pinned[] names. Something holds on to these: I/O under
 *	   way, or a pipe into which pages were spliced, which may keep them for long. If
 *	   pinned_count is more than there are words, any frame may be pinned.
 *
 * A frame that is pinned the LWK keeps in quarantine until a later request does not name it. So
 * a frame that moves to another address (mremap) takes its pins along: the LWK releases the
 * address that it leaves; and as long as any frame was named by the last request, it makes a
 * request for whatever it is about to use for something else, whether reached or not.
 *
 * A bit once set stays set. One request at a time in each process.
 *
 * Beginning. The base gives a process its pages and a first desk, writes what is in
 * struct insula_lwk_process, with BEGUN last, sets the process's bit in attention[] and
 * rings lwk_doorbell. The LWK makes a process with one thread, writes page_table, and
 * asks by INSULA_LWK_ARGUMENTS for the program's path, arguments and environment. It opens
 * and reads the program by delegated calls, as it does when the program execs later.
 *
 * Threads. INSULA_LWK_THREAD is answered by a thread's id on the base, which is
 * the thread's id for the program, and a desk. The LWK checks by process_of[] that it
 * lies in a page of this process, and that no thread of its own has it already. The
 * thread's last request is INSULA_LWK_THREAD_END, after which the desk is the base's.
 *
 * Copies. INSULA_LWK_FORK has the proxy fork, as a program does by fork(2). The module first
 * gives the copy a process of its own, which names its `parent`; the child then takes its
 * space in the place of the parent's, under the same number, and says BEGUN. Only then does
 * the LWK have the copy run. It asks for no arguments: its memory, which has been copied
 * before the request, has all that it needs. The LWK ends the proxy of a copy whose parent
 * is gone before the LWK has heard of the copy, by an INSULA_LWK_EXIT at its first desk.
 *
 * One memory. Processes with the same page_table other than 0 are programs with one memory,
 * as vfork(2) makes them. A release that one of them asks for holds for all: the range is
 * unmapped from each of their proxies, and nothing done by any of these holds a page of it.
 * So the LWK looks at the reach of all of them. One that goes its own way writes 0 for its
 * page_table, releases all of its range, which is then its own alone, and only then, if no
 * frame is pinned, writes another; meanwhile none of the others may ask for a release.
 *
 * The proxy's descriptor of the space is among the program's: the LWK refuses to
 * close or replace that number, as if it were not open.
 *
 * Signals. Those that the base sends to the program reach the proxy, which catches all
 * it can. The module puts each into `queue`, with what siginfo_t says of it and the thread
 * that it came to, adds 1 to `told`, sets the process's bit in attention[] and rings. The
 * LWK takes the entries from `taken` to below `told`, and adds to `taken`. If the queue
 * stays full the signal's bit is set in `signals`, and nothing else is known of it. A signal
 * that comes of a call is in the queue before the call is answered. While the base stops the
 * proxy, also by what the proxy cannot catch, `stopped` says so, and the process's threads are
 * not to run. To break a call off that the base executes, the LWK sets the
 * desk's bit in interrupted[] and rings base_doorbell: the call ends as it ends on
 * Linux when a signal comes, with what it has done or -EINTR. That may come late and
 * meet the thread's next call: an -EINTR for which there is no reason is made anew.
 *
 * Ending. INSULA_LWK_EXIT has the proxy end as the program is to end. When the proxy has
 * ended, by this or killed, the base says ENDED and rings: the LWK stops the program's
 * threads, whose calls will not be answered any more. When nothing of the base holds a
 * page of the program's, it says GONE and rings again. The LWK frees what the process had,
 * and says DONE, even of
 * one that it never saw begin; then the pages of the process are the base's again. When
 * the node ends, no side writes anything any more.
 */
#ifndef INSULA_LWK_H
#define INSULA_LWK_H

#include <linux/types.h>

#define INSULA_LWK_MAGIC	0x45544147454c4544ULL	/* "DELEGATE", little endian */
#define INSULA_LWK_REVISION	6

/* Fewest and most pages of an area. */
#define INSULA_LWK_PAGES_MIN	16
#define INSULA_LWK_PAGES_MAX	512
#define INSULA_LWK_DESKS_PER_PAGE	16
/* Pages that count, which follow the first page: of cores, and the last of them of calls. */
#define INSULA_LWK_COUNTERS_PAGES	5

/*
 * The base's clocks, for the program's: CLOCK_REALTIME and CLOCK_MONOTONIC at one
 * reading of the time stamp counter, and nanoseconds a tick as mult / 2^32. Both times
 * have the same fraction of a nanosecond, as fraction / 2^32. Odd sequence: being written.
 * They are written anew whenever the base corrects its own; the monotonic one never steps
 * back.
 */
struct insula_lwk_clock {
	__u64 sequence;
	__u64 tsc;
	__u64 realtime_ns;
	__u64 monotonic_ns;
	__u64 mult;
	__u64 fraction;
	__u64 reserved[2];
};

/* The first page. Words of doorbells are those of insula_channel.h. */
struct insula_lwk_delegation {
	/* The base's. */
	__u64 magic;		/* INSULA_LWK_MAGIC */
	__u32 revision;		/* INSULA_LWK_REVISION */
	__u32 pages;		/* of the area, this one included */
	__u64 base_doorbell;
	__u64 base_reserved[5];
	struct insula_lwk_clock clock;
	/* The LWK's: 0 until it takes processes. */
	__u64 lwk_doorbell;
	__u64 lwk_reserved[7];
	/* A bit for each desk, set by the LWK: a turn for a sleeper; a call to be broken off. */
	__u64 rung[128];
	__u64 interrupted[128];
	/* A bit for each page, set by the base: look at this process. */
	__u64 attention[8];
	/* For each page: the process that it is of, 0 if none. */
	__u16 process_of[512];
};

/* What a core of the LWK has counted since its start. The LWK's. */
struct insula_lwk_counters {
	__u64 local_calls;
	__u64 delegated_calls;
	__u64 faults;		/* page faults of programs */
	__u64 questions;	/* faults of the base, resolved here */
	__u64 requests;		/* others than calls: threads, releases */
	__u64 entries;		/* of the kernel from programs, for whatever reason */
	__u64 switches;		/* from one thread to another */
	__u64 rings;		/* of the base's doorbell */
};

/* How often programs have made each system call, by its number. The LWK's. */
struct insula_lwk_calls {
	__u64 made[512];
};

/* What the base says of a process. */
enum insula_lwk_base_state {
	INSULA_LWK_NONE = 0,
	INSULA_LWK_BEGUN = 1,	/* run the program */
	INSULA_LWK_ENDED = 2,	/* the proxy is no more */
	INSULA_LWK_GONE = 3,	/* nor does anything hold what it had mapped */
};

/* What the LWK says of it. */
enum insula_lwk_process_state {
	INSULA_LWK_UNKNOWN = 0,
	INSULA_LWK_ALIVE = 1,	/* it has been taken notice of */
	INSULA_LWK_DONE = 2,	/* GONE has been, and all is freed */
};

/* Most frames of a process that are said to be pinned: what is left of its first page. */
#define INSULA_LWK_PINNED_MAX	288

/* Signals of a process that wait to be taken, at most. */
#define INSULA_LWK_QUEUE	32

/* A signal that came for a program. */
struct insula_lwk_signal {
	__s32 signal;
	__s32 error;		/* si_errno */
	__s32 code;		/* si_code */
	__u32 thread;		/* id of the proxy's thread that it came to */
	__u64 fields[4];	/* what follows in siginfo_t, from its byte 16 on */
};

/* First page of a process. */
struct insula_lwk_process {
	/* The base's. */
	__u64 base_state;	/* enum insula_lwk_base_state */
	__u64 desk;		/* the first */
	__u64 pid;		/* the proxy's, as the proxy sees it: the program's */
	__u64 space_start;	/* the program's part of the address space: from here */
	__u64 space_end;	/* to below here */
	__u64 arguments_size;	/* of what INSULA_LWK_ARGUMENTS gives, in bytes */
	__u64 released;		/* ticket of the last INSULA_LWK_RELEASE that was done */
	__u64 descriptor;	/* the proxy's own: of the numbers, the one that is no file's */
	/* Bit number - 1 for each signal that found no room; the base sets, the LWK takes. */
	__u64 signals;
	__u64 parent;		/* the process that this is a copy of; 0: of none */
	__u64 desks;		/* where desk 0 would lie in the proxy's address space */
	__u64 ignored;		/* bits of signals that it begins with: these are ignored, */
	__u64 blocked;		/* and these blocked */
	__u64 told;		/* signals put into the queue until now */
	__u64 stopped;		/* 1: the proxy is stopped, or about to be; 0: it is not */
	__u64 base_reserved;
	/* The LWK's. */
	__u64 lwk_state;	/* enum insula_lwk_process_state */
	__u64 page_table;	/* physical address of its table of level 4; 0: maps nothing yet */
	__u64 taken;		/* signals taken out of the queue until now */
	__u64 lwk_reserved[5];
	/* The base's: signal number n is at n mod INSULA_LWK_QUEUE. */
	struct insula_lwk_signal queue[INSULA_LWK_QUEUE];
	/* The base's, written before `released`: frames that were pinned then. */
	__u64 pinned_count;	/* how many; of more than INSULA_LWK_PINNED_MAX not all are told */
	__u64 pinned_reserved[7];
	__u64 pinned[INSULA_LWK_PINNED_MAX];	/* their physical addresses */
};

/*
 * Second page of a process, the base's: bit (address >> 21) mod 32768 of the bitmap is
 * set before anything in that window is mapped or looked up.
 */
#define INSULA_LWK_REACH_SHIFT	21
struct insula_lwk_reach {
	__u64 windows[512];
};

/* A desk: a cache line for each writer and purpose. */
struct insula_lwk_desk {
	/* The LWK's: a turn. */
	__u64 turn;
	__u64 number;		/* of a system call, or INSULA_LWK_ARGUMENTS and so on */
	__u64 arguments[6];
	/* The base's: the answer. */
	__u64 answer_turn;
	__u64 kind;		/* INSULA_LWK_RESULT or INSULA_LWK_FAULT */
	__u64 result;		/* of the call, negative errno included; or the address */
	__u64 value;		/* second result; or 1 if the access writes, else 0 */
	__u64 answer_reserved[4];
	/* The base's: 1 while the proxy's thread sleeps. */
	__u64 base_asleep;
	__u64 base_reserved[7];
	/* The LWK's: 0, or the doorbell at which its thread is to be woken. */
	__u64 lwk_asleep;
	/* The LWK's, and its calls': arguments that lie in memory. */
	__u64 scratch[7];
};

/* Kinds of answers. */
#define INSULA_LWK_RESULT	0
#define INSULA_LWK_FAULT	1

/* Numbers of requests that are no system calls have this bit set. */
#define INSULA_LWK_REQUEST	(1ULL << 32)

/* After a fault. Argument: 0, or negative errno if the access is not allowed. */
#define INSULA_LWK_RESOLVED	(INSULA_LWK_REQUEST | 0)
/*
 * Copy what the program begins with to an address of its own, arguments (address,
 * size): the path, then the number of arguments and of environment strings as decimal
 * digits, then all these strings, each ended by a NUL. Result: bytes copied.
 */
#define INSULA_LWK_ARGUMENTS	(INSULA_LWK_REQUEST | 1)
/* Make a thread. Result: its id; value: its desk. */
#define INSULA_LWK_THREAD	(INSULA_LWK_REQUEST | 2)
/* This thread has ended. No answer. */
#define INSULA_LWK_THREAD_END	(INSULA_LWK_REQUEST | 3)
/* End the proxy. Argument: status as of wait(2). No answer. */
#define INSULA_LWK_EXIT		(INSULA_LWK_REQUEST | 4)
/*
 * Let go of a range, arguments (start, size, ticket, flags). The ticket is not that of
 * the request before. Result: 0, or -EINVAL if it is no range of whole pages.
 */
#define INSULA_LWK_RELEASE	(INSULA_LWK_REQUEST | 5)
/*
 * Make a process that is a copy of this one, arguments (flags of clone(2), address for what
 * they say is to be written of the child). Result: the child's id; value: its process.
 */
#define INSULA_LWK_FORK		(INSULA_LWK_REQUEST | 6)

/*
 * Flag of a release: forget the mappings, but do not wait for I/O under way. For pages
 * that stay the program's, with fewer rights.
 */
#define INSULA_LWK_RELEASE_MAPPED	1

#endif
