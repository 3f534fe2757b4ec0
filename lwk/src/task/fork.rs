//! fork(2), vfork(2), and clone(2) without CLONE_THREAD.
//!
//! The memory is shared here first. Then the base forks the proxy and gives the child a process.
//! The child runs once its proxy is ready, which may be before or after the base's reply, or never.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use insula_abi::lwk::{process_state, request};
use insula_bare::SegmentBases;

use crate::base::process_pages::ProcessPages;
use crate::hw::memory::kernel_table;
use crate::hw::memory::room::has_room;
use crate::model::errno::{Errno, of_new_task};
use crate::model::signals::frame::AltStack;
use crate::task::address_space::AddressSpace;
use crate::task::loader::PROCESS_BYTES;
use crate::task::mm::Mm;
use crate::task::nascent_child::NascentChild;
use crate::task::process::Process;
use crate::task::thread::Thread;
use crate::task::{mounted, process_table, remote, service};

/// How a process is forked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForkOptions {
    /// Flags of clone(2) that the base implements.
    pub flags: u64,
    /// Address at which the pidfd is stored, if requested.
    pub pidfd: u64,
    /// Stack pointer of the child; 0 for that of the caller.
    pub stack: u64,
    /// FS base of the child; `None` for that of the caller.
    pub tls: Option<u64>,
    /// Address in the child's memory at which its thread id is stored; 0 for none.
    pub set_child_tid: u64,
    /// Address of the word that is cleared when the child exits.
    pub clear_child_tid: u64,
    /// The child has no signal handlers.
    pub clear_handlers: bool,
    /// The child shares the parent's memory.
    pub shares_mm: bool,
    /// The caller is blocked until the child executes a program or exits.
    pub blocks_parent: bool,
}

/// Forks a process with the calling thread alone. Returns the child's id and process. Without
/// memory, waits for exited programs to be reaped: on Linux, a program that was waited for has
/// freed its memory.
///
/// # Errors
/// As of fork(2).
pub(crate) async fn fork(
    thread: &mut Thread,
    options: &ForkOptions,
) -> Result<(u64, Arc<Process>), Errno> {
    loop {
        match try_fork(thread, options).await {
            Err(Errno::ENOMEM) if thread.may_wait_for_memory() => remote::wait_for_memory().await,
            result => {
                thread.memory_wait_since_ns = None;
                return result;
            }
        }
    }
}

async fn try_fork(
    thread: &mut Thread,
    options: &ForkOptions,
) -> Result<(u64, Arc<Process>), Errno> {
    has_room(PROCESS_BYTES)?;
    if options.pidfd != 0 {
        let mut space = thread.process.space();
        space.can_write(options.pidfd, options.pidfd.saturating_add(4))?;
    }
    let nascent_child = NascentChild::of(thread, options)?;
    let parent = Arc::clone(&thread.process);
    parent.forks_in_progress.fetch_add(1, Ordering::AcqRel);
    let child = fork_process(thread, options, nascent_child).await;
    parent.forks_in_progress.fetch_sub(1, Ordering::AcqRel);
    service::service_children(&parent);
    child
}

/// Forks with the change lock held: the base would complete no invalidation before the fork, and
/// the child's memory is that of the moment at which the proxy is forked.
async fn fork_process(
    thread: &mut Thread,
    options: &ForkOptions,
    nascent_child: NascentChild,
) -> Result<(u64, Arc<Process>), Errno> {
    let parent = Arc::clone(&thread.process);
    let _guard = parent.mm().change().await;
    let space = match options.shares_mm {
        true => None,
        false => Some(clone_space(thread).await?),
    };
    let forked = match thread.begin_base_fork(options).await {
        Ok(()) => request_fork(thread, options).await,
        Err(error) => Err(error),
    };
    thread.end_base_fork(options).await;
    parent.mm().space().end_fork();
    match forked {
        Ok((id, pages)) => {
            let mm = parent.child_mm(space, pages, options);
            let child = parent.new_child(pages, mm, options);
            mounted::inherit(&parent, &child);
            *child.nascent_child.lock() = Some(Box::new(nascent_child));
            process_table::add(Arc::clone(&child));
            Ok((id, child))
        }
        Err(error) => {
            space.into_iter().for_each(|mut space| space.free());
            Err(error)
        }
    }
}

/// Clones the address space, with the change lock held.
async fn clone_space(thread: &mut Thread) -> Result<AddressSpace, Errno> {
    let mm = thread.process.mm();
    let bounds = mm.space().bounds();
    let mut space = kernel_table::with_kernel_table(|kernel| AddressSpace::new(kernel, bounds))?;
    let range = mm.space().begin_fork();
    let pinned = thread.invalidate(&range).await;
    let cloned = {
        let mut own = mm.space();
        own.finish_invalidation(&range, &pinned);
        let cloned = own.clone_into(&mut space, &pinned);
        // The base copies what is in the proxy only later: until then nobody writes there what
        // comes after a write that the child does not see.
        if cloned.is_err() || own.in_one_proxy_within(bounds.0, bounds.1).is_none() {
            own.end_fork();
        }
        cloned
    };
    match cloned {
        Ok(()) => Ok(space),
        Err(error) => {
            space.free();
            Err(error)
        }
    }
}

/// Has the base fork the proxy. Returns the child's id and pages.
async fn request_fork(
    thread: &mut Thread,
    options: &ForkOptions,
) -> Result<(u64, ProcessPages), Errno> {
    // During the fork the base could not write to the program's memory.
    let pidfd = match options.pidfd {
        0 => 0,
        _ => thread.put_scratch(&[0]).ok_or(Errno::EFAULT)?,
    };
    let arguments = [options.flags, pidfd, 0, 0, 0, 0];
    let created = thread.remote_call(request::FORK, arguments).await;
    // The proxy unblocks all signals afterwards.
    thread.blocked_in_proxy = 0;
    let (id, number) = created.map_err(|_| Errno::EINTR)?;
    let id = of_new_task(id)?;
    if options.pidfd != 0 {
        let [pidfd, ..] = thread.slot.scratch();
        let pidfd = (pidfd as u32).to_le_bytes();
        // It can be written, or another thread has just unmapped it.
        let _ = thread.process.space().write(options.pidfd, &pidfd);
    }
    let own = thread.process.pages;
    let pages = ProcessPages::at(own.area(), number);
    let is_child = own.area().can_hold_process(number)
        && own.area().slot_belongs_to(pages.slot(), number)
        && pages.parent() == own.number()
        && pages.state() == process_state::UNKNOWN;
    is_child.then_some((id, pages)).ok_or(Errno::EAGAIN)
}

impl NascentChild {
    fn of(thread: &mut Thread, options: &ForkOptions) -> Result<Self, Errno> {
        let mut context = thread.context;
        context.registers.rax = 0;
        if options.stack != 0 {
            context.registers.rsp = options.stack;
        }
        let mut extended = thread.extended.duplicate().ok_or(Errno::ENOMEM)?;
        if let Some(fs) = options.tls {
            if !SegmentBases::is_valid(fs) {
                return Err(Errno::EPERM);
            }
            let gs = extended.bases().gs;
            extended.set_bases(SegmentBases { fs, gs });
        }
        Ok(Self {
            context,
            extended,
            blocked: thread.process.signals().blocked(thread.id),
            scheduling: thread.inherited(),
            // Threads that run concurrently in the same memory do not share a signal stack.
            alt_stack: match options.shares_mm && !options.blocks_parent {
                false => thread.alt_stack,
                true => AltStack::default(),
            },
            rseq: thread.rseq.filter(|_| !options.shares_mm),
            set_child_tid: options.set_child_tid,
            clear_child_tid: options.clear_child_tid,
            ports: thread.ports.clone(),
        })
    }
}

impl Process {
    /// Returns the child's memory: the cloned space, or else this process's own.
    fn child_mm(
        &self,
        space: Option<AddressSpace>,
        pages: ProcessPages,
        options: &ForkOptions,
    ) -> Arc<Mm> {
        let Some(space) = space else {
            let mm = self.mm();
            mm.add_sharer(pages, !options.blocks_parent);
            return mm;
        };
        Mm::new(space, pages)
    }

    /// Creates the child, which inherits from this process.
    fn new_child(&self, pages: ProcessPages, mm: Arc<Mm>, options: &ForkOptions) -> Arc<Self> {
        let mut signals = self.signals().clone_for_child();
        if options.clear_handlers {
            signals.clear_handlers();
        }
        let child = Self::new(pages, mm);
        *child.signals.lock() = signals;
        *child.limits.lock() = self.limits().clone();
        child.set_personality(self.personality());
        child.set_region(self.region());
        child.add_signals_of_fds(self.signals_of_fds());
        *child.program_info.lock() = self.program_info.lock().clone();
        child
            .blocks_parent
            .store(options.blocks_parent, Ordering::Release);
        pages.set_page_table(child.space().root().0);
        pages.set_state(process_state::ALIVE);
        child
    }
}
