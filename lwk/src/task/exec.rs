//! execve(2).
//!
//! First the files are opened; on failure the program goes on. Then all other threads exit, and the
//! one left becomes the thread group leader. Memory shared with another process (vfork(2)) is left
//! to that.

use alloc::boxed::Box;
use core::sync::atomic::Ordering;

use insula_abi::lwk::request;
use insula_bare::SegmentBases;

use crate::base::polling;
use crate::base::slot::Slot;
use crate::hw::clock;
use crate::hw::memory::kernel_table;
use crate::info;
use crate::model::errno::Errno;
use crate::model::initial_stack::Arguments;
use crate::model::number;
use crate::model::signals::frame::AltStack;
use crate::model::vma::PAGE;
use crate::task::address_space::AddressSpace;
use crate::task::address_space::stop::Invalidation;
use crate::task::announcement;
use crate::task::close_on_exec::close_on_exec;
use crate::task::image::{Image, PendingExec};
use crate::task::mm::Mm;
use crate::task::program_file::{self, LoadError};
use crate::task::thread::Thread;
use crate::task::{endpoint_registry, layout, loader, mounted, pci};

/// Size of the buffer for a path and the head of a file.
const BUFFER_SIZE: u64 = 4 * PAGE;

/// Prepares to execute another program: opens it and makes all other threads exit. [`finish_exec`]
/// completes that when they have. A relative path starts at `directory`.
///
/// # Errors
/// As of execve(2): the program goes on.
pub(crate) async fn exec(
    thread: &mut Thread,
    directory: u64,
    mut arguments: Arguments,
) -> Result<(), Errno> {
    let buffer = thread.map_buffer(BUFFER_SIZE).await?;
    let found = program_file::open_program(thread, directory, &mut arguments, buffer).await;
    let error = match found {
        Ok(image) if thread.process.kill_other_threads(thread.id) => {
            thread.pending_exec = Some(Box::new(PendingExec {
                buffer,
                arguments,
                image,
            }));
            return Ok(());
        }
        // Another thread was first, so this one exits.
        Ok(image) => {
            image.close(thread).await;
            Errno::EAGAIN
        }
        Err(LoadError::Syscall(errno)) => errno,
        Err(LoadError::Format(_)) => Errno::ENOEXEC,
    };
    thread.unmap_buffer(buffer, BUFFER_SIZE).await?;
    Err(error)
}

/// Completes execve(2) in the only thread left.
///
/// # Errors
/// [`Errno::ENOMEM`]; [`Errno::EBUSY`] if the base keeps pages of shared memory pinned.
pub(crate) async fn finish_exec(thread: &mut Thread) -> Result<(), Errno> {
    let Some(next) = thread.pending_exec.take() else {
        return Ok(());
    };
    let PendingExec {
        buffer,
        arguments,
        image,
    } = *next;
    thread.become_leader();
    thread.process.exec_thread.store(0, Ordering::Release);
    pci::release_all(thread.process.pages().number());
    let ended = endpoint_registry::close_all(thread.process.pages().number());
    ended.into_iter().for_each(announcement::end_all);
    set_name(thread, buffer, &arguments.path).await;
    thread.release_robust_futexes().await;
    if let Err(error) = replace_mm(thread, buffer).await {
        image.close(thread).await;
        return Err(error);
    }
    set_executable(thread, image.file()).await;
    reset_thread(thread).await;
    thread.process.complete_vfork();
    load_new_program(thread, &arguments, image).await;
    Ok(())
}

/// Empties the program's memory, or replaces it if it is shared.
async fn replace_mm(thread: &mut Thread, buffer: u64) -> Result<(), Errno> {
    if !thread.process.mm().is_shared() {
        thread.end_all_base_mappings().await?;
        return thread.change_space(AddressSpace::clear).await;
    }
    thread.clear_tid_word();
    // The inherited base mappings; those of the shared memory are the parent's proxy's.
    thread.map_whole_mirror().await?;
    thread.unmap_buffer(buffer, BUFFER_SIZE).await?;
    let mm = thread.process.mm();
    // With the change lock no other process requests an invalidation.
    let guard = mm.change().await;
    let own = leave_shared_mm(thread, &mm).await;
    drop(guard);
    let pages = *thread.process.pages();
    *thread.process.mm.lock() = Mm::new(own?, pages);
    mm.remove_sharer(&pages);
    Ok(())
}

/// Gives a process an address space of its own, whose page table the base uses from then on.
async fn leave_shared_mm(thread: &mut Thread, mm: &Mm) -> Result<AddressSpace, Errno> {
    let pages = *thread.process.pages();
    let (bounds, region, limit, root) = {
        let space = mm.space();
        (space.bounds(), space.region(), space.limit(), space.root())
    };
    let own = kernel_table::with_kernel_table(|kernel| AddressSpace::new(kernel, bounds));
    let mut own = own?;
    own.set_limit(limit);
    own.set_region(region);
    pages.set_page_table(0);
    if is_any_pinned(thread, bounds).await {
        pages.set_page_table(root.0);
        own.free();
        return Err(Errno::EBUSY);
    }
    pages.set_page_table(own.root().0);
    Ok(own)
}

/// Whether pages of a range stay pinned after its invalidation, for longer than a timeout.
async fn is_any_pinned(thread: &mut Thread, (start, end): (u64, u64)) -> bool {
    /// Most I/O has finished by then.
    const TIMEOUT_NS: u64 = 100_000_000;
    const PERIOD_NS: u64 = 1_000_000;
    let limit_ns = clock::now_ns() + TIMEOUT_NS;
    let range = Invalidation {
        start,
        end,
        keeps_pages: false,
        force: true,
    };
    while thread.invalidate(&range).await.is_any() {
        let now_ns = clock::now_ns();
        if now_ns > limit_ns {
            return true;
        }
        polling::sleep_until(now_ns + PERIOD_NS).await;
    }
    false
}

/// Loads the program. On failure the process is killed.
async fn load_new_program(thread: &mut Thread, arguments: &Arguments, image: Image) {
    if let Err(error) = load_and_close(thread, arguments, image).await {
        const KILLED: u64 = 9;
        info!(
            "process {} is killed: loading the new program failed: {error:?}",
            thread.id
        );
        thread.exit_process(KILLED);
    }
}

/// Loads the program, then closes the close-on-exec files.
async fn load_and_close(
    thread: &mut Thread,
    arguments: &Arguments,
    image: Image,
) -> Result<(), LoadError> {
    loader::load_replacement(thread, arguments, image).await?;
    close_on_exec(thread).await?;
    mounted::close_on_exec(&thread.process);
    Ok(layout::trim_stack(thread).await?)
}

/// Resets the state that a thread had from the old program.
async fn reset_thread(thread: &mut Thread) {
    let timers = thread.process.signals().take_timers();
    for timer in timers {
        // It fails only if the timer or the proxy is gone.
        let _ = thread
            .remote_syscall(number::TIMER_DELETE, [timer.id.into(), 0, 0, 0, 0, 0])
            .await;
    }
    thread.process.signals().clear_handlers();
    thread.context = insula_bare::UserContext::default();
    thread.extended.reset();
    thread.extended.set_bases(SegmentBases::default());
    thread.clear_child_tid = 0;
    thread.robust_list = (0, 0);
    thread.rseq = None;
    thread.alt_stack = AltStack::default();
    thread.last_exception = [0; 3];
}

/// Sets the process's name on the base, as far as it may.
async fn set_name(thread: &mut Thread, buffer: u64, path: &[u8]) {
    const SET_NAME: u64 = 15;
    let last = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let mut name = last.to_vec();
    name.push(0);
    let written = thread.process.space().write(buffer, &name);
    if written.is_ok() {
        let _ = thread
            .remote_syscall(number::PRCTL, [SET_NAME, buffer, 0, 0, 0, 0])
            .await;
    }
}

/// Sets the process's executable on the base, as far as it may: only once nothing of the old one is mapped.
async fn set_executable(thread: &mut Thread, file: u64) {
    const SET_MM: u64 = 35;
    const EXE_FILE: u64 = 13;
    let _ = thread
        .remote_syscall(number::PRCTL, [SET_MM, EXE_FILE, file, 0, 0, 0])
        .await;
}

impl Thread {
    /// Becomes the thread group leader, after all other threads have exited.
    pub(super) fn become_leader(&mut self) {
        let pages = *self.process.pages();
        if self.id == pages.pid() {
            return;
        }
        self.slot.submit(request::THREAD_END, [0; 6]);
        self.slot = Slot::attach(pages.area(), pages.slot());
        self.process.signals().rename(self.id, pages.pid());
        self.id = pages.pid();
    }
}
