/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * insula_lwk.h - system call delegation: memory shared by the base and a lightweight kernel
 * (LWK) through which the base executes the system calls of the LWK's programs
 *
 * Each program on an LWK has a *proxy* on the base: a process whose address space holds only
 * its own small loop, at a high address. The proxy owns the program's pid, open files,
 * directory, terminal and credentials, and has one thread for each thread of the program. The
 * program's part of its address space is one mapping of an *mm mirror* (insula.h): a page that
 * Linux touches there is looked up in the program's own page table, and the same physical page
 * is mapped at the same address. So the proxy makes a call with exactly the arguments that the
 * program passed, pointers within structures included; nothing here knows what any call means.
 *
 * Layout. The delegation area follows the node's channels, if the memory of its ACPI device
 * INSU0001 is longer than these. It is an array of pages of 4096 bytes: struct
 * insula_lwk_delegation, the counters of each core and struct insula_lwk_calls
 * (INSULA_LWK_COUNTERS_PAGES in all), struct insula_lwk_core of each core
 * (INSULA_LWK_CORES_PAGES), struct insula_lwk_maps (INSULA_LWK_MAPS_PAGES), then pages that the
 * base assigns to processes:
 *
 *	process   two consecutive pages: struct insula_lwk_process, struct insula_lwk_may_map.
 *		  Identified by the number of the first. Not writable by programs.
 *	slots     sixteen struct insula_lwk_syscall_slot of one process, mapped by the proxy. A
 *		  slot is identified by page number * 16 + its index in the page.
 *
 * Every word has one writer, the base or the LWK, except bitmaps whose bits one side sets and
 * the other clears, by atomic instructions. Each such bitmap of struct insula_lwk_maps has a
 * summary in struct insula_lwk_delegation, with a bit for each of its words. Who sets a bit in a
 * word that was 0 then sets the word's bit in the summary; who clears takes the words named by
 * the summary after having cleared it. Each side reads a word of the other once and then
 * checks it. The base's words in slots are written by the proxy, so the program's user can
 * forge them: this must harm that program only. Hence the checks below.
 *
 * System calls. A thread's slot is a ring of one entry. The LWK writes number and arguments,
 * then, with release, the next sequence number; the proxy's thread, which polls that word,
 * executes the call, writes the result and, with release, the same number to answer_sequence.
 * The LWK may write while answer_sequence == sequence. One cache line travels each way, and
 * nothing else happens as long as both sides poll.
 *
 *	       LWK's thread                       proxy's thread
 *	number, arguments; sequence := n   ->	(polls sequence)
 *	(polls answer_sequence)			the call, on the base
 *					   <-	result; answer_sequence := n
 *
 * Sleeping. A proxy's thread that polled in vain calls INSULA_MIRROR_SLOT_WAIT: the module
 * sets base_asleep, fences and checks sequence again. After posting a call the LWK fences and
 * checks base_asleep; if it is set, the LWK sets the slot's bit in wake_pending[] and, if the
 * word was 0, rings base_doorbell. In the other direction the LWK's core stores a doorbell
 * of its own in lwk_asleep, fences and checks answer_sequence again; after an answer the proxy
 * fences and checks lwk_asleep; if it is set, the proxy calls INSULA_MIRROR_SLOT_WAKE.
 *
 * Remote faults. When Linux touches a page that the program's page table does not map, or not
 * for writing, the module answers for the proxy's thread with INSULA_LWK_FAULT, in the middle
 * of the call. The LWK handles it as a page fault of the waiting thread, posts
 * INSULA_LWK_RESOLVED as the next entry, and goes on waiting for an answer: the call's, or the
 * next fault. While it resolves a fault the LWK makes no request on this slot and waits for
 * nobody who does; so it holds no lock that a fault needs across a request, except
 * INSULA_LWK_INVALIDATE. The LWK maps a range ahead of its use by making
 * madvise(MADV_POPULATE_WRITE) itself.
 *
 * Copy on write. After a fork parent and child own frames together. An entry with the bit
 * INSULA_LWK_COPY_ON_WRITE counts as not mapped, also for reading: the module raises a remote
 * fault, and the LWK gives the program a page of its own. So whatever the base has mapped or
 * pinned has one owner, and the LWK replaces a page with that bit without an invalidation.
 *
 * Once the LWK has resolved a fault it does not unmap the page before the base has looked it up
 * again: as long as `faulting` is 1 and the entry INSULA_LWK_RESOLVED is not answered. So a
 * program that replaces its memory again and again delays itself, not its other threads' calls.
 * If the LWK unmaps the page nevertheless, the base raises the fault again, a few times.
 *
 * Faults of a process. Others than a thread of the proxy in a call touch such pages, too: another
 * process by process_vm_readv(2), a worker of io_uring, the proxy's thread when I/O completes
 * between two calls. They have no slot to ask by, so the base asks in the process's page:
 *
 *	base					LWK's core that is rung
 *	faults[i]: address, access;
 *	  sequence := n, with release
 *	process_pending[], lwk_doorbell	->	faults[i].sequence != answers[i].sequence
 *						resolves it in the process's address space
 *					<-	answers[i]: error; sequence := n, with release;
 *						rings base_doorbell
 *	looks the page up;
 *	  faults[i].looked_up := n
 *
 * The base raises the next fault in an entry only when the last one is answered, and waits for
 * an answer with a timeout. The LWK answers whatever the process's threads do: computing, stopped
 * or gone. It retries a fault that has to wait (for memory, for a page that is being unmapped)
 * without an interrupt, and answers when that is over. A page is not unmapped before `looked_up`
 * says so, as with `faulting`; but for 100 ms at most, as the one who asked may have been killed.
 *
 * Invalidation. The base maps a page, or walks the page table, only after it has set the bit
 * of the 2 MiB window in the process's may-map bitmap, followed by a full fence. To reuse a
 * frame or a page-table page of a program, or to reduce access rights, the LWK
 *
 *	1. clears or changes the entries, and flushes the TLBs of its own cores,
 *	2. makes a full fence and checks the may-map bitmap: if no bit of the range is set, the
 *	   base maps nothing there and will find nothing. Else
 *	3. makes the request INSULA_LWK_INVALIDATE on a slot of the process and waits for the
 *	   answer. The base is done only if `invalidated` in the process's page equals the
 *	   request's ticket: then no mapping and no walk of the range is left, and no I/O is
 *	   under way in any page of the program that was ever invalidated, at this address or
 *	   another, except the frames listed in pinned[]. These are held by I/O under way or by
 *	   a pipe into which pages were spliced, possibly for long. If pinned_count exceeds the
 *	   list's length, any frame may be pinned.
 *
 * The LWK quarantines a pinned frame until a later request does not list it. A frame that
 * moves to another address (mremap) takes its pins along: the LWK invalidates its old
 * address; and as long as the last request listed any frame, the LWK makes a request for
 * whatever it is about to reuse, whether its may-map bit is set or not.
 *
 * May-map bits are never cleared. Each process makes one such request at a time.
 *
 * Base mappings. Memory that a file or device of the base backs is the base's own, as is all that a
 * process had before it became a program here: the proxy maps
 * the file at the address at which the program has it, shared or private as the program does, in
 * place of that part of the mirror. So Linux itself keeps it coherent, truncates it, writes it
 * back, finds it in calls, and copies private pages when they are written. The program's page
 * table follows the proxy's:
 *
 *	LWK's thread				module, in the proxy
 *	page fault in a base mapping
 *	allocates the tables above the entry
 *	INSULA_LWK_FAULT_IN		->	faults the page in, as the proxy's access,
 *						stores entries of it and of present
 *					<-	pages around it; result
 *	returns to the program
 *
 * Only the module writes these entries, which have INSULA_LWK_PTE_BASE set; the LWK allocates and
 * frees the tables only. Before the base unmaps, write-protects, reclaims or migrates such a page
 * it clears the entries, and has the cores forget them: it increments flush_requests in each
 * core's struct insula_lwk_core, and waits until no core uses the page any more, ringing the
 * doorbells of those that run a program of that page table:
 *
 *	base					LWK's core
 *	clears entries				running := page table; full fence
 *	flush_requests += 1; full fence		if flush_requests != flushes_done:
 *	for cores with running == page table:		flush TLB; flushes_done := flush_requests
 *		rings `doorbell`, waits until	the program, until an interrupt or trap
 *		it leaves the program or	running := 0
 *		flushes_done is not less
 *
 * While it executes a call that waits for nothing, a core may leave `running` as it is: the
 * doorbell then comes as soon as it is back in the program.
 *
 * When the LWK's kernel itself accesses such a page it makes `accesses` odd, makes a full fence,
 * reads the entry again, and makes `accesses` even when it is done: the base waits while
 * it is odd, unless it changes. The LWK waits for nothing meanwhile. A node that keeps the base
 * waiting for seconds is stopped.
 *
 * To end a base mapping the LWK has the proxy map the mirror there again, by mmap(2). A fork's
 * proxy inherits the base mappings; INSULA_MIRROR_MAP maps the mirror everywhere else. Processes
 * that share one memory change no base mapping until they do not share it any more. Private pages
 * that are written are in one proxy only, that of the process which had the memory first: the LWK
 * excludes such mappings from what the proxies of the others inherit (MADV_DONTFORK), and names
 * that process when it has a page faulted in. There the others' calls find the mirror, which
 * denies access: it never maps a page of the base.
 *
 * Process start. The base assigns pages and a first slot, fills struct insula_lwk_process,
 * base_state last, sets the process's bit in process_pending[] and rings lwk_doorbell. The LWK
 * creates a process with one thread, writes page_table, and gets the program's path, arguments
 * and environment by INSULA_LWK_ARGUMENTS. It opens and reads the program by delegated calls,
 * as for a later execve().
 *
 * Running programs. A process of the base can go on as a program: it becomes its own proxy, and so
 * keeps its id, files and everything else that the base knows of it. `running` is not 0 then, and
 * INSULA_LWK_ARGUMENTS copies not a path but the state of the process (insula_running.h), best to
 * that address, where the process has nothing else mapped. All of its memory is base mappings at
 * first, anonymous memory as well. Its threads are attached to their slots. The proxy's own memory
 * lies somewhere in the program's range, which the LWK leaves alone.
 *
 * Such a program can leave again. The base sets `leave` and rings: the LWK has all threads of the
 * program wait before they return to it, as if a signal without a handler had interrupted them,
 * writes their state and what memory is its own (insula_running.h) to memory of the program,
 * `left_size`, and last `left`. The base copies that memory, and the proxy exits for the LWK. Or
 * the base clears `leave`, and the program goes on.
 *
 * Threads. INSULA_LWK_THREAD returns a thread id of the base, which is the thread's id for the
 * program, and a slot. The LWK checks by process_of[] that the slot is in a page of this
 * process, and that none of its threads uses it. The thread's last request is
 * INSULA_LWK_THREAD_END, which frees the slot.
 *
 * Fork. INSULA_LWK_FORK makes the proxy fork. The module first assigns the child a process,
 * which names its `parent`; the child's proxy then replaces the mirror that it inherited by
 * its own, under the same descriptor number, and sets STARTED. Only then does the LWK run the
 * child. It needs no arguments: its memory was cloned before the request. If the parent is
 * gone before the LWK has seen the child, the LWK ends the child's proxy by an INSULA_LWK_EXIT
 * at its first slot. Before the LWK shares frames with the child it sets
 * INSULA_LWK_COPY_ON_WRITE in the parent's entries and invalidates them; it does not share what
 * is pinned.
 *
 * Shared memory. Processes with the same page_table other than 0 share one memory, as after
 * vfork(2). An invalidation by one of them with INSULA_LWK_INVALIDATE_SHARED covers all: the
 * range is unmapped from each of their proxies, and no I/O of theirs holds a page of it. So the
 * LWK checks the may-map bitmaps of all of them. A process that leaves the shared memory writes 0
 * to its page_table, invalidates its whole range, and only then, if no frame is pinned, writes
 * another table; meanwhile none of the others may invalidate.
 *
 * The mirror's descriptor is in the program's descriptor table: the LWK refuses to close or
 * replace that number, as if it were not open.
 *
 * Signals. The proxy catches all signals that the base sends to the program, where that is
 * possible. The module puts each into `queue`, with its siginfo_t and the thread that received
 * it, increments `signals_queued`, sets the process's bit in process_pending[] and rings. The
 * LWK takes the entries from `signals_dequeued` up to `signals_queued`, and advances
 * `signals_dequeued`. If the queue stays full, the signal's bit is set in `signals_overflow`
 * and its siginfo_t is lost. A signal raised by a call is queued before the call is answered.
 * While the base stops the proxy, even by SIGSTOP, `stopped` is 1 and the process's threads
 * must not run. To cancel a call that the base executes, the LWK sets the slot's bit in
 * cancel_pending[] and rings base_doorbell: the call ends as on Linux when a signal comes,
 * with a partial result or -EINTR. If it had not begun, it never does: its result is -EINTR,
 * with INSULA_LWK_NOT_BEGUN as `value`, and the LWK makes it again after the signal, since on
 * Linux most calls never return -EINTR. The cancellation may come late and hit the thread's
 * next call: the LWK restarts a call that returns -EINTR for no reason.
 *
 * Exit. INSULA_LWK_EXIT makes the proxy exit as the program would. When the proxy exits, by
 * this or by a signal, the base sets EXITED and rings: the LWK stops the program's threads,
 * whose calls will no longer be answered, and sets STOPPED when none of them runs any more. The
 * proxy waits for that, for a second at most, before its parent learns of its end: as on Linux,
 * nothing writes shared memory on behalf of a process that has been waited for. The base sets
 * UNMAPPED when the proxy's memory is gone, and with it its base mappings. When nothing of
 * the base maps or pins a page of the program, the base sets QUIESCED and rings again. The LWK
 * frees the process's memory and sets REAPED, even for a process that it never saw start; then
 * the base reuses the process's pages. Once the node has ended, neither side writes anything.
 *
 * Robust futexes. Those in the node's memory are released by the LWK. Those in base mappings have
 * waiters on the base, so when a process exits, Linux releases them in the exits of its proxy's
 * threads. The head of each thread's list, as of set_robust_list(2), is `robust_list` of its
 * slot, in a second mapping of the slots (INSULA_MIRROR_EXIT_SLOTS). Nothing but these exits
 * touches that mapping: the module sets EXITED then, and lets the head be read once STOPPED is
 * set. So nobody gets a lock whose owner still runs. Before it sets STOPPED, the LWK stores a
 * head in the slot of each thread that has such futexes: the first of them is the first entry.
 * When a thread exits alone, or executes a program, the LWK releases them by calls.
 */
#ifndef INSULA_LWK_H
#define INSULA_LWK_H

#include <linux/types.h>

#define INSULA_LWK_MAGIC	0x45544147454c4544ULL	/* "DELEGATE", little endian */
#define INSULA_LWK_REVISION	12

/* Fewest and most pages of a delegation area. */
#define INSULA_LWK_PAGES_MIN	64
#define INSULA_LWK_PAGES_MAX	16384
#define INSULA_LWK_SLOTS_PER_PAGE	16
/* Pages of counters after the first page: those of cores, then one of system calls. */
#define INSULA_LWK_COUNTERS_PAGES	5
/* Pages of struct insula_lwk_core, which follow. */
#define INSULA_LWK_CORES_PAGES	8
/* Pages of struct insula_lwk_maps, which follow. */
#define INSULA_LWK_MAPS_PAGES	25

/*
 * The base's clocks, for the programs' vDSO: CLOCK_REALTIME and CLOCK_MONOTONIC at one reading
 * of the time stamp counter, and nanoseconds per tick as mult / 2^32. Both times have the same
 * sub-nanosecond part, fraction / 2^32. The sequence is odd during an update. Updated whenever
 * the base corrects its clocks; CLOCK_MONOTONIC never steps back.
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

/* The first page. Doorbell words are those of insula_channel.h. */
struct insula_lwk_delegation {
	/* Written by the base. */
	__u64 magic;		/* INSULA_LWK_MAGIC */
	__u32 revision;		/* INSULA_LWK_REVISION */
	__u32 pages;		/* of the area, this one included */
	__u64 base_doorbell;
	__u64 base_reserved[5];
	struct insula_lwk_clock clock;
	/* Written by the LWK: 0 until it accepts processes. */
	__u64 lwk_doorbell;
	__u64 lwk_reserved[7];
	/* Summaries of the bitmaps of struct insula_lwk_maps. */
	__u64 wake_summary[64];
	__u64 cancel_summary[64];
	__u64 process_summary[4];
	__u64 reserved[4];
};

/* What is pending of slots and processes, and who has the pages of the area. */
struct insula_lwk_maps {
	/* A bit for each slot, set by the LWK: wake its waiter; cancel its call. */
	__u64 wake_pending[4096];
	__u64 cancel_pending[4096];
	/* A bit for each page, set by the base: read this process's page. */
	__u64 process_pending[256];
	__u64 reserved[256];
	/* Written by the base: process that each page is assigned to, 0 if none. */
	__u16 process_of[INSULA_LWK_PAGES_MAX];
};

/* Counters of an LWK's core since its start. Written by the LWK. */
struct insula_lwk_counters {
	__u64 local_calls;
	__u64 delegated_calls;
	__u64 faults;		/* page faults of programs */
	__u64 remote_faults;	/* page faults of the base, resolved here */
	__u64 requests;		/* other than calls: threads, invalidations */
	__u64 entries;		/* from programs into the kernel, for any reason */
	__u64 switches;		/* from one thread to another */
	__u64 rings;		/* of the base's doorbell */
};

/* How often programs have made each system call, by number. Written by the LWK. */
struct insula_lwk_calls {
	__u64 made[512];
};

/* A core of an LWK, for base mappings. */
struct insula_lwk_core {
	/* Written by the base. */
	__u64 flush_requests;	/* TLB flushes requested so far */
	__u64 base_reserved[7];
	/* Written by the LWK. */
	__u64 running;		/* page table of the program that it runs; 0: none */
	__u64 accesses;		/* odd while the kernel accesses a page of a base mapping */
	__u64 flushes_done;	/* the last flush_requests that it has obeyed */
	__u64 doorbell;		/* interrupts the program; 0: the core is not running */
	__u64 interrupted_at;	/* time stamp counter when it last handled a doorbell */
	__u64 up_since;		/* time stamp counter when it came up; 0: it never has */
	/*
	 * For how long it has idled since then, in ticks of the time stamp counter; while it
	 * idles, with INSULA_LWK_CORE_IDLE, less the counter: who reads it adds that (modulo 2^62).
	 */
	__u64 idle_ticks;
	__u64 lwk_reserved;
};

#define INSULA_LWK_CORE_IDLE	(1ULL << 62)

/* Bit of an entry of a program's page table: the page is one of a base mapping. */
#define INSULA_LWK_PTE_BASE	(1ULL << 11)

/* State of a process as set by the base. */
enum insula_lwk_base_state {
	INSULA_LWK_NONE = 0,
	INSULA_LWK_STARTED = 1,		/* run the program */
	INSULA_LWK_EXITED = 2,		/* the proxy exits */
	INSULA_LWK_UNMAPPED = 3,	/* its memory is gone */
	INSULA_LWK_QUIESCED = 4,	/* nothing of the base maps or pins its pages */
};

/* State of a process as set by the LWK. */
enum insula_lwk_process_state {
	INSULA_LWK_UNKNOWN = 0,
	INSULA_LWK_ALIVE = 1,	/* the LWK has seen it */
	INSULA_LWK_REAPED = 2,	/* QUIESCED was set, and its memory is freed */
	INSULA_LWK_STOPPED = 3,	/* its threads will not run any more */
};

/* Most frames of a process reported as pinned: what fits in its first page. */
#define INSULA_LWK_PINNED_MAX	240

/* Most queued signals of a process. */
#define INSULA_LWK_QUEUE	32

/* A signal to a program. */
struct insula_lwk_signal {
	__s32 signal;
	__s32 error;		/* si_errno */
	__s32 code;		/* si_code */
	__u32 thread;		/* id of the proxy's thread that received it */
	__u64 fields[4];	/* siginfo_t from byte 16 on */
};

/* Most faults of a process at a time, on its memory. */
#define INSULA_LWK_FAULTS	8

/* A fault of a process. Written by the base. */
struct insula_lwk_fault {
	__u64 address;
	__u64 access;		/* 1: write; 0: read */
	__u64 sequence;		/* number of the entry's last fault */
	__u64 looked_up;	/* the last fault whose page was looked up after its answer */
};

/* The answer to it. Written by the LWK. */
struct insula_lwk_fault_answer {
	__u64 error;		/* 0, or negative errno if access is denied */
	__u64 sequence;		/* of the fault */
};

/* First page of a process. */
struct insula_lwk_process {
	/* Written by the base. */
	__u64 base_state;	/* enum insula_lwk_base_state */
	__u64 slot;		/* of the first thread */
	__u64 pid;		/* of the proxy in its pid namespace: the program's */
	__u64 mirror_start;	/* the program's part of the address space: */
	__u64 mirror_end;	/* [mirror_start, mirror_end) */
	__u64 arguments_size;	/* of what INSULA_LWK_ARGUMENTS copies, in bytes */
	__u64 invalidated;	/* ticket of the last INSULA_LWK_INVALIDATE done */
	__u64 descriptor;	/* number of the mirror's descriptor in the proxy */
	/* Bit number - 1 for each signal dropped from the full queue; the LWK clears. */
	__u64 signals_overflow;
	__u64 parent;		/* process that this one was forked from; 0: none */
	__u64 slots;		/* address in the proxy at which slot 0 would lie */
	__u64 ignored;		/* signals ignored at start, as bits, */
	__u64 blocked;		/* and those blocked */
	__u64 signals_queued;	/* signals put into the queue so far */
	__u64 stopped;		/* 1: the proxy is stopped, or about to be */
	__u64 running;		/* address for the state of a running process; 0: none */
	/* Written by the LWK. */
	__u64 lwk_state;	/* enum insula_lwk_process_state */
	__u64 page_table;	/* physical address of its level 4 table; 0: maps nothing yet */
	__u64 signals_dequeued;	/* signals taken from the queue so far */
	__u64 left;		/* address of the state of a program that leaves; 0: not yet */
	__u64 left_size;	/* of it, in bytes; 0: it cannot leave */
	__u64 lwk_reserved[3];
	/* Written by the base: signal number n is at n mod INSULA_LWK_QUEUE. */
	struct insula_lwk_signal queue[INSULA_LWK_QUEUE];
	struct insula_lwk_fault faults[INSULA_LWK_FAULTS];	/* written by the base */
	struct insula_lwk_fault_answer answers[INSULA_LWK_FAULTS];	/* written by the LWK */
	/* Written by the base before `invalidated`: frames that were pinned then. */
	__u64 pinned_count;	/* if more than INSULA_LWK_PINNED_MAX, not all are listed */
	__u64 leave;		/* 1: the program is to leave the node */
	__u64 pinned_reserved[6];
	__u64 pinned[INSULA_LWK_PINNED_MAX];	/* physical addresses */
};

/*
 * Second page of a process, written by the base: its may-map bitmap. Bit (address >> 21) mod
 * 32768 is set before anything in that window is mapped or looked up.
 */
#define INSULA_LWK_MAY_MAP_SHIFT	21
struct insula_lwk_may_map {
	__u64 windows[512];
};

/*
 * Bit of an entry for a page in a program's page table: the page has to be copied before it is
 * written. Processors ignore it.
 */
#define INSULA_LWK_COPY_ON_WRITE	(1ULL << 10)

/* A syscall slot: a cache line for each writer and purpose. */
struct insula_lwk_syscall_slot {
	/* Written by the LWK: a call. */
	__u64 sequence;
	__u64 number;		/* of a system call or a request, such as INSULA_LWK_ARGUMENTS */
	__u64 arguments[6];
	/* Written by the base: the answer. */
	__u64 answer_sequence;
	__u64 kind;		/* INSULA_LWK_RESULT or INSULA_LWK_FAULT */
	__u64 result;		/* of the call, negative errno included; or the fault's address */
	__u64 value;		/* second result, 0 or INSULA_LWK_NOT_BEGUN of a system call; or
				 * 1 for a write fault, 0 for a read fault
				 */
	__u64 answer_reserved[4];
	/* Written by the base: 1 while the proxy's thread sleeps; */
	__u64 base_asleep;
	__u64 faulting;		/* 1 from a remote fault until its page was looked up again */
	__u64 base_reserved[3];
	/* Written by the LWK when the thread has exited with its process: 0, or a list's head. */
	__u64 robust_list[3];
	/* Written by the LWK: 0, or the doorbell that wakes its thread. */
	__u64 lwk_asleep;
	/* Written by the LWK, and by its calls: arguments passed in memory. */
	__u64 scratch[7];
};

/* Kinds of answers. */
#define INSULA_LWK_RESULT	0
#define INSULA_LWK_FAULT	1
/* Second result of a system call that was cancelled before it began. */
#define INSULA_LWK_NOT_BEGUN	1

/* Bit set in the numbers of requests that are no system calls. */
#define INSULA_LWK_REQUEST	(1ULL << 32)

/* Reply to a remote fault. Argument: 0, or negative errno if access is denied. */
#define INSULA_LWK_RESOLVED	(INSULA_LWK_REQUEST | 0)
/*
 * Copy the program's arguments to its memory, arguments (address, size): the path, then the
 * numbers of arguments, of environment strings and of mounts as decimal digits, then all these
 * strings, each terminated by a NUL. A mount is a mount point, '=', and the name of a file server's
 * endpoint (insula_files.h); with an empty mount point, that of a network server (insula_net.h).
 * Result: bytes copied.
 */
#define INSULA_LWK_ARGUMENTS	(INSULA_LWK_REQUEST | 1)
/* Create a thread. Result: its id; value: its slot. */
#define INSULA_LWK_THREAD	(INSULA_LWK_REQUEST | 2)
/* This thread has exited. No answer. */
#define INSULA_LWK_THREAD_END	(INSULA_LWK_REQUEST | 3)
/* Make the proxy exit. Argument: status as of wait(2). No answer. */
#define INSULA_LWK_EXIT		(INSULA_LWK_REQUEST | 4)
/*
 * Invalidate a range, arguments (start, size, ticket, flags). The ticket differs from that of
 * the previous request. Result: 0, or -EINVAL if the range is not of whole pages.
 */
#define INSULA_LWK_INVALIDATE	(INSULA_LWK_REQUEST | 5)
/*
 * Fork, arguments (flags of clone(2), address where they ask for the child's id to be written).
 * Result: the child's id; value: its process.
 */
#define INSULA_LWK_FORK		(INSULA_LWK_REQUEST | 6)

/*
 * Fault in a page of a base mapping, arguments (address, access, owner): see INSULA_LWK_ACCESS_*;
 * where the process's own proxy has no base mapping, that of the process `owner` is meant, which
 * shares the page table.
 * Result: 0; -EFAULT if the proxy may not access it; -EAGAIN if a table above its entry is
 * missing; -ENOMEM.
 */
#define INSULA_LWK_FAULT_IN	(INSULA_LWK_REQUEST | 7)

/* Access to a page of a base mapping: it is written; its entries allow execution. */
#define INSULA_LWK_ACCESS_WRITE		1
#define INSULA_LWK_ACCESS_EXECUTE	2

/*
 * Flags of an invalidation: unmap, but do not wait for I/O under way, for pages that the program
 * keeps, with fewer access rights; and do so in all processes that share the memory.
 */
#define INSULA_LWK_INVALIDATE_NO_QUIESCE	1
#define INSULA_LWK_INVALIDATE_SHARED		2

#endif
