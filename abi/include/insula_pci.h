/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * insula_pci.h - PCI functions of a lightweight-kernel node, driven by its programs: system calls
 * that this kernel has beside Linux'
 *
 * A node that was given functions (insula.h) leaves them to its programs. A function is named by
 * its address: segment << 16 | bus << 8 | device << 3 | function.
 *
 *	all = INSULA_SYS_PCI_LIST(functions, count)
 *		INSULA_SYS_PCI_CLAIM(address)
 *		INSULA_SYS_PCI_RELEASE(address)
 *
 * One process at a time has a function: no other, not even a child. A claim resets the function
 * (function level reset) and waits until it is ready: decoding, DMA and interrupts are off then,
 * and all registers have their defaults. Without CAP_SYS_RAWIO on the base it fails with EPERM,
 * since a device without an IOMMU reaches all memory of the machine.
 *
 *		INSULA_SYS_PCI_ENABLE(address, flags)
 *	value = INSULA_SYS_PCI_READ(address, offset, size)
 *	start = INSULA_SYS_PCI_MAP(address, bar, offset, size)
 *		INSULA_SYS_PCI_ALLOCATE(address, memory)
 *		INSULA_SYS_PCI_INTERRUPT(address, message, endpoint)
 *
 * ENABLE switches decoding of memory and DMA on and off; of configuration space nothing else can
 * be written. READ reads 1, 2 or 4 bytes of it. MAP maps a part of a memory BAR, uncached: such a
 * mapping can be accessed by the program's own instructions only (not by system calls), it is not
 * inherited by children, and can be unmapped but not protected or moved. ALLOCATE maps zeroed
 * memory that is physically contiguous, and returns its address for the device.
 *
 * An interrupt is a request. INTERRUPT has a message of the function (an entry of its MSI-X table)
 * arrive at an endpoint whose server the caller is (insula_server.h): with the operation
 * INSULA_PCI_INTERRUPTED, sender 0, the function's address and the message's number as its words.
 * It is received before those of clients; nobody listens to its reply; while one of a message waits
 * to be received no other is added. The message interrupts the core of the caller, and later that
 * of the thread that waited for it last. With the endpoint INSULA_PCI_NO_ENDPOINT it is masked, as
 * all are after a claim.
 *
 * Release, execve(2) and the end of the process, however it comes, switch DMA off, and with it
 * interrupts; only then can memory of ALLOCATE that is no longer mapped be used for anything else. The next claim waits
 * until nobody has a BAR mapped any more, for 5 seconds at most, then resets the function. A
 * function that has no function level reset can be claimed again only if its DMA was never on.
 *
 * Errors beside those: ENODEV (there is no such function), EBUSY (it is claimed, or mapped, or
 * cannot be reset), EACCES (the caller has not claimed it), EIO (it does not come back from its
 * reset), EINVAL (there is no such BAR, no such range of it, no such offset, size or flag), ENOMEM
 * (also beyond INSULA_PCI_MEMORY_MAX for one function, and INSULA_PCI_MAPPINGS_MAX of each kind),
 * EFAULT, EINTR, EBADF (no endpoint that the caller serves), EOPNOTSUPP (the function has no MSI-X,
 * or a shared core, or one with an APIC id above 255, is to be interrupted), ENOSPC (more than
 * INSULA_PCI_INTERRUPTS_MAX on the node). On Linux all of these calls fail with ENOSYS.
 */
#ifndef INSULA_PCI_H
#define INSULA_PCI_H

#include <linux/types.h>

#define INSULA_SYS_PCI_LIST	1033
#define INSULA_SYS_PCI_CLAIM	1034
#define INSULA_SYS_PCI_RELEASE	1035
#define INSULA_SYS_PCI_ENABLE	1036
#define INSULA_SYS_PCI_READ	1037
#define INSULA_SYS_PCI_MAP	1038
#define INSULA_SYS_PCI_ALLOCATE	1039
#define INSULA_SYS_PCI_INTERRUPT	1040

/* BARs of a function. */
#define INSULA_PCI_BARS		6
/* Flags of ENABLE: the function answers at its BARs; it may access memory. */
#define INSULA_PCI_DECODE	1
#define INSULA_PCI_DMA		2
/* Most bytes that ALLOCATE gives at once, and to one claim. */
#define INSULA_PCI_BLOCK_MAX	(4ULL << 20)
#define INSULA_PCI_MEMORY_MAX	(64ULL << 20)
/* Most BAR mappings, and most blocks of memory, of a claim. */
#define INSULA_PCI_MAPPINGS_MAX	64
/* Most messages of a function that can interrupt: the first ones. */
#define INSULA_PCI_MESSAGES_MAX	32
/* Most messages that can interrupt a node. */
#define INSULA_PCI_INTERRUPTS_MAX	64
/* Nobody receives a message. */
#define INSULA_PCI_NO_ENDPOINT	(~0ULL)
/* Operation of the request that an interrupt is. */
#define INSULA_PCI_INTERRUPTED	0xffffffff

/* A function of the node. */
struct insula_pci_function {
	__u32 address;
	__u16 vendor;
	__u16 device;
	__u32 class_code;	/* Class, subclass and programming interface, of 8 bits each. */
	__u32 owner;		/* Process id of who has claimed it; 0 if nobody has. */
	__u64 bars[INSULA_PCI_BARS];	/* Bytes of each memory BAR; 0 for others. */
};

/* Memory that the function reaches. */
struct insula_pci_memory {
	__u64 size;		/* In: a number of bytes, rounded up to pages. */
	__u64 start;		/* Out: where it is mapped. */
	__u64 device_address;	/* Out: where the device finds it. */
};

#endif /* INSULA_PCI_H */
