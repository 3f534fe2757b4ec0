/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * insula_files.h - what a lightweight kernel asks a file server: the calls of programs on files
 * below a mount point of that server (messages: insula_server.h)
 *
 * The kernel knows where programs have mounted which server, and which of their descriptors are
 * open files of a server. A call on one of these becomes a request, whose sender is the calling
 * thread. Word 0 of the reply is the call's result, as of a system call: a value, or a negative
 * error number.
 *
 * Word 0 of a request is the handle of an open file description, which may have several
 * descriptors; INSULA_FILE_NONE for none. The kernel chooses the handles, and uses none twice: so
 * it can release what was opened for a program that has died meanwhile. The other words are in
 * the list of operations.
 *
 * Operations with paths (P) have them in front of what may be read, each with its NUL:
 *
 *	the mount point, without a trailing slash
 *	the path below it, from the directory of the handle if there is one
 *	a second path, if the operation has one: from the directory of the handle in word 1
 *
 * Paths are as programs have them, with ".", ".." and symbolic links. The server resolves them; one
 * that leaves the mount fails with EXDEV. An empty path means the handle's own file.
 *
 * Locks (fcntl(2), flock(2)) are the kernel's. It tells files by st_ino, which no other file may
 * get as long as one is open.
 *
 * A server may have the content of its files served by shards: endpoints of their own, whose names
 * are the server's with a dot and a number from 1 on. The reply to an open names the shard that has
 * the file. That is asked from then on for all that is done with the open file itself; the server
 * for what is done by paths.
 *
 * Offsets are in bytes. INSULA_FILE_CURRENT as an offset means that of the description, which then
 * advances.
 *
 * A server may share pages of regular files with the kernel, which reads them itself from then on,
 * for any program that has the file open: no request comes for that. It announces that, and what
 * changes later, by replies to request 0 (insula_server.h), whose words are:
 *
 *	0	st_ino
 *	5	INSULA_ANNOUNCE_FILE_PAGE: the page is shared
 *		1	its number in the file: pages have 4096 bytes
 *		2	where it is in the server's memory: in a shared mapping of its own (mmap(2)
 *			with MAP_SHARED and MAP_ANONYMOUS), at a multiple of 4096
 *		3	st_size
 *	5	INSULA_ANNOUNCE_FILE_INVALID: pages are shared no more
 *		1	the number of the first one
 *		2	how many
 *	5	INSULA_ANNOUNCE_FILE_CHANGED: the next read is to be requested
 *
 * As the page is the server's own, what it writes there is seen by the next read without further
 * ado. It announces FILE_INVALID before the page becomes something else, or has fewer bytes of the
 * file; FILE_CHANGED, if the size has become larger, and whenever it is to hear of a read, such as
 * for the time of access: the next one, which is requested, comes with that. Both are in time if
 * they are announced by the call that replies to the request that was the cause. Of files that the
 * kernel does not know the announcement has no effect. The kernel may forget a page, and requests a
 * read of it then.
 *
 * A program that maps a file with MAP_SHARED gets the server's own pages. Word 1 of the request is
 * the handle of the mapping, which is used for all of the file's as long as one is left; it ends
 * with UNMAP. Before it replies the server announces where the pages of that range are, as far as
 * the file goes; and, when the file grows later, those that are new:
 *
 *	5	INSULA_ANNOUNCE_FILE_MAPPED
 *		1	its number in the file
 *		2	where it is in the server's memory, as above
 *
 * They stay the file's in those places, also if it is cut meanwhile, until no mapping is left; and
 * so long the file is not deleted. A page that the file never had cannot be accessed (SIGBUS); one
 * that it has no more has zeros.
 *
 * So the kernel may know more of the offset of a description than the server. With a request that
 * needs it (reads and writes at INSULA_FILE_CURRENT, seeking) it tells that, with a number. The
 * server takes the offset over if the number is higher than the last it has seen for that
 * description; in word 1 of the reply it says what the offset is now.
 */
#ifndef INSULA_FILES_H
#define INSULA_FILES_H

#include <linux/types.h>

#define INSULA_FILE_NONE	(~0ULL)
#define INSULA_FILE_CURRENT	(~0ULL)
/* Highest number of a shard. */
#define INSULA_FILE_SHARDS_MAX	64

/* Flags, modes and structures are Linux', as of the call of that name. */
enum insula_file_operation {
	INSULA_FILE_OPEN = 1,		/* P; 1: flags, 2: mode, 3: its handle. Word 1: st_mode,
					 * 2: st_ino, 3: its shard, or 0
					 */
	INSULA_FILE_RELEASE = 2,	/* the last descriptor is closed; the reply has no effect */
	INSULA_FILE_READ = 3,		/* 1: offset, 2: told offset, 3: its number. Writes what
					 * was read. Word 1: the new offset
					 */
	INSULA_FILE_WRITE = 4,		/* The same. Reads what is to be written */
	INSULA_FILE_SEEK = 5,		/* 1: offset, 2: whence, 3: told offset, 4: its number.
					 * Word 1: the new offset
					 */
	INSULA_FILE_STAT = 6,		/* P; 1: AT_ flags. Writes a struct stat */
	INSULA_FILE_STATX = 7,		/* P; 1: AT_ flags, 2: mask. Writes a struct statx */
	INSULA_FILE_ACCESS = 8,		/* P; 1: mode, 2: AT_ flags */
	INSULA_FILE_MKDIR = 9,		/* P; 1: mode */
	INSULA_FILE_UNLINK = 10,	/* P; 1: AT_REMOVEDIR or 0 */
	INSULA_FILE_RENAME = 11,	/* PP; 1: second handle, 2: RENAME_ flags */
	INSULA_FILE_LINK = 12,		/* PP; 1: second handle, 2: AT_ flags */
	INSULA_FILE_SYMLINK = 13,	/* PP: the new path, the target */
	INSULA_FILE_READLINK = 14,	/* P. Writes the target */
	INSULA_FILE_CHMOD = 15,		/* P; 1: mode, 2: AT_ flags */
	INSULA_FILE_CHOWN = 16,		/* P; 1: user, 2: group (-1: as it is), 3: AT_ flags */
	INSULA_FILE_UTIMES = 17,	/* P; 1: AT_ flags, 2: whether two struct timespec follow
					 * the path
					 */
	INSULA_FILE_TRUNCATE = 18,	/* P; 1: length */
	INSULA_FILE_ALLOCATE = 19,	/* 1: mode, 2: offset, 3: length */
	INSULA_FILE_SYNC = 20,		/* 1: whether the data alone are enough */
	INSULA_FILE_READDIR = 21,	/* Writes struct linux_dirent64 */
	INSULA_FILE_STATFS = 22,	/* P. Writes a struct statfs */
	INSULA_FILE_FLAGS = 23,		/* 1: new status flags, or INSULA_FILE_NONE. Result: the
					 * old ones
					 */
	INSULA_FILE_SIZE = 24,		/* Result: st_size */
	INSULA_FILE_MAP = 25,		/* 1: handle of the mapping, 2: offset, 3: length, 4:
					 * whether it is to be written
					 */
	INSULA_FILE_UNMAP = 26,		/* 0: handle of a mapping; the reply has no effect */
	INSULA_FILE_MSYNC = 27,		/* 0: handle of a mapping */
};

#endif /* INSULA_FILES_H */
