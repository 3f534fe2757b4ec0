// SPDX-License-Identifier: GPL-2.0-only
/*
 * The address space of a program on a node, for its proxy: insula_lwk.h tells what for.
 *
 * A fault is answered by the program's own page table, a window of pages at a time,
 * inserted as ordinary pages so that a call can do I/O on them. They are inserted for
 * reading, and made writable by the first fault that writes, as far as the program's
 * table allows. What it does not map, or not for writing, the program's kernel is asked
 * for, by the desk of the thread that faults.
 *
 * Faults walk and insert under the lock `walking`, shared; letting go takes it alone:
 * then no walk is under way. It is never held while something is asked for.
 */
#include "insula_module.h"

#include <linux/anon_inodes.h>
#include <linux/bits.h>
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/file.h>
#include <linux/jiffies.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/rwsem.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>

#include "arch/x86/page_table.h"
#include "compat/compat.h"
#include "insula_lwk.h"
#include "program_pages.h"
#include "space.h"

/* Pages mapped by one fault. A power of two. */
#define WINDOW_PAGES	64
/* How often the program's kernel may be asked for the same page, if it does not come. */
#define QUESTIONS	8
/* How long a release waits for I/O under way. */
#define RELEASE_WAIT_MS	100
/* How often it is looked whether the pages of a program that has ended are still held. */
#define LOOK_AGAIN_MS	10

struct space {
	struct insula_desks *desks;
	u32 process;
	struct insula_desks_user user;
	u64 start, end;
	struct mm_struct *mm;		/* the proxy's, to be compared with */
	struct address_space mapping;	/* of the descriptor: all that maps it */
	struct rw_semaphore walking;
	struct insula_program_pages pages;
	struct mutex releasing;		/* one at a time */
	struct xarray seats;		/* by the thread's id, of those that sit */
	atomic_t begun;
	struct delayed_work let_go;
};

static struct workqueue_struct *letting_go;
static const struct file_operations space_fops;

/* The pages from `first` on that a fault is to insert. */
struct window {
	u64 first;
	unsigned int count;
	struct page *page[WINDOW_PAGES];	/* NULL: not there */
	DECLARE_BITMAP(writable, WINDOW_PAGES);
};

/* What we look at from now on the program's kernel will have us let go of. */
static void reach_for(struct space *space, u64 address)
{
	unsigned long *windows = (void *)insula_desks_reach(space->desks, space->process)->windows;
	u64 bit = (address >> INSULA_LWK_REACH_SHIFT) % (8 * PAGE_SIZE);

	if (!test_bit(bit, windows))
		set_bit(bit, windows);
	smp_mb(); /* before any entry is read */
}

/* Look the window up that an address lies in. Its error is that of the address. */
static int look_up(struct space *space, const struct vm_area_struct *vma, u64 address,
		   struct window *window)
{
	struct file *memory = insula_desks_memory(space->desks);
	u64 first = ALIGN_DOWN(address, WINDOW_PAGES * PAGE_SIZE), at;
	u64 end = min_t(u64, first + WINDOW_PAGES * PAGE_SIZE, vma->vm_end);
	struct insula_translation found;
	u64 page_table;
	unsigned int i;
	int err, answer = -ENOENT;

	first = max_t(u64, first, vma->vm_start);
	reach_for(space, address);
	page_table = READ_ONCE(insula_desks_process(space->desks, space->process)->page_table);
	if (!page_table)
		return -ENOENT;
	window->first = first;
	window->count = (end - first) >> PAGE_SHIFT;
	bitmap_zero(window->writable, WINDOW_PAGES);
	for (at = first, i = 0; at < end; at += PAGE_SIZE, i++) {
		err = insula_translate(memory, page_table, at, &found);
		/* Memory below 1 MiB is lent by the firmware: no program has it. */
		if (!err && found.page < INSULA_LOW_LIMIT)
			err = -EIO;
		window->page[i] = err ? NULL : pfn_to_page(PHYS_PFN(found.page));
		if (!err && found.writable)
			__set_bit(i, window->writable);
		if (at == address)
			answer = err;
	}
	return answer;
}

/* Insert `count` pages, each unless there is one already. */
static int insert_run(struct vm_area_struct *vma, u64 address, struct page **pages,
		      unsigned long count)
{
	unsigned long left, done;
	int err;

	while (count) {
		left = count;
		err = vm_insert_pages(vma, address, pages, &left);
		if (!err)
			return 0;
		if (err != -EBUSY)
			return err;
		done = count - left + 1;
		address += done * PAGE_SIZE;
		pages += done;
		count -= done;
	}
	return 0;
}

static int insert(struct space *space, struct vm_area_struct *vma, struct window *window)
{
	unsigned int i, from = 0;
	u64 at;
	int err;

	for (i = 0; i <= window->count; i++) {
		at = window->first + i * PAGE_SIZE;
		if (i < window->count && window->page[i]) {
			err = insula_program_pages_add(&space->pages, at, window->page[i]);
			if (err)
				return err;
			continue;
		}
		at = window->first + from * PAGE_SIZE;
		err = insert_run(vma, at, &window->page[from], i - from);
		if (err)
			return err;
		from = i + 1;
	}
	return 0;
}

static int make_writable(pte_t *pte, unsigned long address, void *data)
{
	struct vm_area_struct *vma = data;

	if (pte_present(*pte))
		set_pte_at(vma->vm_mm, address, pte,
			   insula_pte_mkwrite(pte_mkdirty(pte_mkyoung(*pte))));
	return 0;
}

static int permit_writing(struct vm_area_struct *vma, const struct window *window)
{
	unsigned int from, to;
	int err;

	for_each_set_bitrange(from, to, window->writable, window->count) {
		err = apply_to_page_range(vma->vm_mm, window->first + from * PAGE_SIZE,
					  (to - from) * PAGE_SIZE, make_writable, vma);
		if (err)
			return err;
	}
	return 0;
}

/* -ENOENT: the program's kernel has to be asked for the page. */
static int map_window(struct space *space, struct vm_area_struct *vma, u64 address, bool write)
{
	struct window window;
	int err = look_up(space, vma, address, &window);

	if (err)
		return err;
	if (write && !test_bit((address - window.first) >> PAGE_SHIFT, window.writable))
		return -ENOENT;
	err = insert(space, vma, &window);
	return err || !write ? err : permit_writing(vma, &window);
}

static int ask(struct space *space, u64 address, bool write)
{
	struct insula_seat *seat = xa_load(&space->seats, current->pid);

	return seat ? insula_seat_ask(seat, address, write) : -EFAULT;
}

static int bring(struct space *space, struct vm_area_struct *vma, u64 address, bool write)
{
	int questions = QUESTIONS, err;

	do {
		down_read(&space->walking);
		err = insula_desks_gone(space->desks) ? -EPIPE :
		      map_window(space, vma, address, write);
		up_read(&space->walking);
		if (err != -ENOENT)
			return err;
		err = ask(space, address, write);
	} while (!err && questions--);
	return err ? err : -EIO;
}

static vm_fault_t fault_for(struct vm_fault *vmf, bool write)
{
	u64 address = vmf->address & PAGE_MASK;
	int err = -EFAULT;

	if ((u64)vmf->pgoff << PAGE_SHIFT == address)
		err = bring(vmf->vma->vm_file->private_data, vmf->vma, address, write);
	if (err == -ENOMEM)
		return VM_FAULT_OOM;
	return err ? VM_FAULT_SIGBUS : VM_FAULT_NOPAGE;
}

static vm_fault_t fault(struct vm_fault *vmf)
{
	return fault_for(vmf, vmf->flags & FAULT_FLAG_WRITE);
}

/* A page that is mapped for reading is written to. */
static vm_fault_t page_mkwrite(struct vm_fault *vmf)
{
	return fault_for(vmf, true);
}

static const struct vm_operations_struct program_vm_ops = {
	.fault = fault,
	.page_mkwrite = page_mkwrite,
};

static int map_program(struct space *space, struct vm_area_struct *vma)
{
	if ((u64)vma->vm_pgoff << PAGE_SHIFT != vma->vm_start ||
	    vma->vm_start < space->start || vma->vm_end > space->end)
		return -EINVAL;
	insula_vm_flags_set(vma, VM_MIXEDMAP | VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY);
	vma->vm_ops = &program_vm_ops;
	return 0;
}

/* One at a time, as they are looked at: none after the node has gone. */
static vm_fault_t desks_fault(struct vm_fault *vmf)
{
	struct space *space = vmf->vma->vm_file->private_data;
	u64 page = vmf->pgoff - (INSULA_SPACE_DESKS >> PAGE_SHIFT);
	vm_fault_t answer = VM_FAULT_SIGBUS;
	phys_addr_t start;

	down_read(&space->walking);
	start = insula_desks_page(space->desks, space->process, page);
	if (start && !insula_desks_gone(space->desks))
		answer = vmf_insert_pfn(vmf->vma, vmf->address & PAGE_MASK, PHYS_PFN(start));
	up_read(&space->walking);
	return answer;
}

static const struct vm_operations_struct desks_vm_ops = {
	.fault = desks_fault,
};

static int map_desks(struct vm_area_struct *vma)
{
	insula_vm_flags_set(vma, VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY);
	vma->vm_ops = &desks_vm_ops;
	return 0;
}

static int space_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct space *space = file->private_data;

	if (!(vma->vm_flags & VM_SHARED) || (vma->vm_flags & VM_EXEC))
		return -EINVAL;
	if (current->mm != space->mm)
		return -EPERM;
	if (vma->vm_pgoff >= INSULA_SPACE_DESKS >> PAGE_SHIFT)
		return map_desks(vma);
	return map_program(space, vma);
}

/* Wait a while until nobody holds a page that was mapped. */
static int wait_until_free(struct space *space)
{
	ktime_t limit = ktime_add_ms(ktime_get(), RELEASE_WAIT_MS);

	while (insula_program_pages_held(&space->pages)) {
		if (fatal_signal_pending(current))
			return -EINTR;
		if (ktime_after(ktime_get(), limit))
			return -EBUSY;
		usleep_range(50, 200);
	}
	return 0;
}

static int release_range(struct space *space, const struct insula_space_range *range)
{
	struct insula_lwk_process *process = insula_desks_process(space->desks, space->process);
	bool held = !(range->flags & INSULA_LWK_RELEASE_MAPPED);
	int err = 0;

	down_write(&space->walking);
	unmap_mapping_range(&space->mapping, range->start, range->size, 1);
	if (held)
		err = insula_program_pages_unmapped(&space->pages, range->start,
						    range->start + range->size);
	up_write(&space->walking);
	if (!err && held)
		err = wait_until_free(space);
	if (!err)
		insula_desks_write(space->desks, &process->released, range->ticket);
	return err;
}

static int ioctl_release(struct space *space, void __user *argument)
{
	struct insula_space_range range;
	int err;

	if (copy_from_user(&range, argument, sizeof(range)))
		return -EFAULT;
	if (range.flags & ~INSULA_LWK_RELEASE_MAPPED || !range.size ||
	    !PAGE_ALIGNED(range.start | range.size) || range.start < space->start ||
	    range.start > space->end || range.size > space->end - range.start)
		return -EINVAL;
	if (mutex_lock_killable(&space->releasing))
		return -EINTR;
	err = release_range(space, &range);
	mutex_unlock(&space->releasing);
	return err;
}

static int ioctl_begin(struct space *space, void __user *argument)
{
	struct insula_lwk_process *process = insula_desks_process(space->desks, space->process);
	struct insula_space_begin begin;

	if (copy_from_user(&begin, argument, sizeof(begin)))
		return -EFAULT;
	if (atomic_xchg(&space->begun, 1))
		return -EBUSY;
	insula_desks_write(space->desks, &process->arguments_size, begin.arguments_size);
	insula_desks_write(space->desks, &process->descriptor, begin.descriptor);
	insula_desks_write(space->desks, &process->base_state, INSULA_LWK_BEGUN);
	insula_desks_call_attention(space->desks, space->process);
	return insula_desks_gone(space->desks) ? -EPIPE : 0;
}

static int take_desk(struct space *space)
{
	struct insula_seat *seat = insula_desks_take_seat(space->desks, space->process);

	return IS_ERR(seat) ? PTR_ERR(seat) : seat->index;
}

static int sit(struct space *space, struct insula_seat *seat)
{
	int err = xa_err(xa_store(&space->seats, current->pid, seat, GFP_KERNEL));

	if (err)
		return err;
	err = insula_seat_sit(seat);
	if (err)
		xa_erase(&space->seats, current->pid);
	return err;
}

static int leave(struct space *space, struct insula_seat *seat)
{
	xa_cmpxchg(&space->seats, current->pid, seat, NULL, 0);
	insula_seat_leave(seat);
	return 0;
}

static int signal(struct space *space, unsigned long number)
{
	struct insula_lwk_process *process = insula_desks_process(space->desks, space->process);

	if (!number || number > _NSIG)
		return -EINVAL;
	if (insula_desks_gone(space->desks))
		return -EPIPE;
	set_bit(number - 1, (unsigned long *)&process->signals);
	insula_desks_call_attention(space->desks, space->process);
	return 0;
}

/* The calls of a thread about a desk. */
static int at_desk(struct space *space, unsigned int command, unsigned long desk)
{
	struct insula_seat *seat = insula_desks_seat(space->desks, space->process, desk);

	if (!seat)
		return -EINVAL;
	switch (command) {
	case INSULA_SPACE_SIT:
		return sit(space, seat);
	case INSULA_SPACE_LEAVE:
		return leave(space, seat);
	case INSULA_SPACE_WAIT:
		return insula_seat_wait(seat, TASK_INTERRUPTIBLE);
	default:
		insula_seat_ring(seat);
		return 0;
	}
}

static long space_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct space *space = file->private_data;

	if (current->mm != space->mm)
		return -EPERM;
	switch (command) {
	case INSULA_SPACE_BEGIN:
		return ioctl_begin(space, (void __user *)argument);
	case INSULA_SPACE_DESK:
		return take_desk(space);
	case INSULA_SPACE_SIGNAL:
		return signal(space, argument);
	case INSULA_SPACE_RELEASE:
		return ioctl_release(space, (void __user *)argument);
	case INSULA_SPACE_SIT:
	case INSULA_SPACE_LEAVE:
	case INSULA_SPACE_WAIT:
	case INSULA_SPACE_RING:
		return at_desk(space, command, argument);
	default:
		return -ENOTTY;
	}
}

/* The node is no more: nothing of it is shown any more. */
static void hung_up(struct insula_desks_user *user)
{
	struct space *space = container_of(user, struct space, user);

	down_write(&space->walking);
	unmap_mapping_range(&space->mapping, 0, 0, 1);
	up_write(&space->walking);
}

static void free_space(struct space *space)
{
	insula_program_pages_destroy(&space->pages);
	xa_destroy(&space->seats);
	mmdrop(space->mm);
	insula_desks_put(space->desks);
	kfree(space);
}

/* Nothing maps it any more. The program's kernel hears so when nobody holds a page either. */
static void let_go(struct work_struct *work)
{
	struct space *space = container_of(to_delayed_work(work), struct space, let_go);
	int err = insula_program_pages_unmapped(&space->pages, space->start, space->end);

	if (!insula_desks_gone(space->desks) &&
	    (err || insula_program_pages_held(&space->pages))) {
		queue_delayed_work(letting_go, &space->let_go, msecs_to_jiffies(LOOK_AGAIN_MS));
		return;
	}
	insula_desks_drop_process(space->desks, space->process, &space->user);
	free_space(space);
}

static int space_release(struct inode *inode, struct file *file)
{
	struct space *space = file->private_data;

	insula_desks_end_process(space->desks, space->process);
	queue_delayed_work(letting_go, &space->let_go, 0);
	return 0;
}

static const struct file_operations space_fops = {
	.owner = THIS_MODULE,
	.mmap = space_mmap,
	.unlocked_ioctl = space_ioctl,
	.release = space_release,
};

static const struct address_space_operations no_operations = {
};

static struct space *new_space(struct insula_desks *desks,
			       const struct insula_space_create *request)
{
	struct space *space = kzalloc(sizeof(*space), GFP_KERNEL);

	if (!space)
		return NULL;
	space->desks = desks;
	insula_desks_get(desks);
	space->start = request->start;
	space->end = request->end;
	space->mm = current->mm;
	mmgrab(space->mm);
	address_space_init_once(&space->mapping);
	space->mapping.a_ops = &no_operations;
	init_rwsem(&space->walking);
	mutex_init(&space->releasing);
	insula_program_pages_init(&space->pages);
	xa_init(&space->seats);
	space->user.hung_up = hung_up;
	INIT_DELAYED_WORK(&space->let_go, let_go);
	return space;
}

/* Its pages in the area, and the first desk. */
static int settle(struct space *space, struct insula_space_create *request)
{
	struct insula_lwk_process *process;
	struct insula_seat *seat;
	int page = insula_desks_add_process(space->desks, &space->user);

	if (page < 0)
		return page;
	space->process = page;
	seat = insula_desks_take_seat(space->desks, page);
	if (IS_ERR(seat)) {
		insula_desks_drop_process(space->desks, page, &space->user);
		return PTR_ERR(seat);
	}
	process = insula_desks_process(space->desks, page);
	insula_desks_write(space->desks, &process->desk, seat->index);
	insula_desks_write(space->desks, &process->pid, task_tgid_vnr(current));
	insula_desks_write(space->desks, &process->space_start, space->start);
	insula_desks_write(space->desks, &process->space_end, space->end);
	request->desk = seat->index;
	return 0;
}

static int install(struct space *space)
{
	struct file *file;
	int fd = get_unused_fd_flags(O_CLOEXEC);

	if (fd < 0)
		return fd;
	file = anon_inode_getfile("[insula-space]", &space_fops, space, O_RDWR);
	if (IS_ERR(file)) {
		put_unused_fd(fd);
		return PTR_ERR(file);
	}
	/* Of its own, so that only what maps this descriptor is unmapped. */
	space->mapping.host = file_inode(file);
	file->f_mapping = &space->mapping;
	fd_install(fd, file);
	return fd;
}

int insula_space_create(struct insula_desks *desks, void __user *argument)
{
	struct insula_space_create request;
	struct space *space;
	int answer;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (request.flags || !PAGE_ALIGNED(request.start | request.end) ||
	    request.start >= request.end || request.end > INSULA_SPACE_DESKS)
		return -EINVAL;
	if (!insula_desks_ready(desks))
		return -EAGAIN;
	space = new_space(desks, &request);
	if (!space)
		return -ENOMEM;
	answer = settle(space, &request);
	if (answer) {
		free_space(space);
		return answer;
	}
	answer = copy_to_user(argument, &request, sizeof(request)) ? -EFAULT : install(space);
	if (answer < 0) {
		insula_desks_end_process(desks, space->process);
		insula_desks_drop_process(desks, space->process, &space->user);
		free_space(space);
	}
	return answer;
}

int insula_spaces_init(void)
{
	letting_go = alloc_workqueue("insula-spaces", WQ_UNBOUND, 0);
	return letting_go ? 0 : -ENOMEM;
}

void insula_spaces_exit(void)
{
	destroy_workqueue(letting_go);
}
