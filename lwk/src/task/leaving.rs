//! A program that leaves the node: its threads wait before they return to it, and the last of them writes
//! the state of all for the base (insula_running.h). Either the proxy exits then, or the program goes on.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::Ordering;
use core::task::Poll;

use insula_abi::running as abi;
use zerocopy::IntoBytes;

use crate::base::polling;
use crate::hw::cores;
use crate::hw::memory::room::reserve_in;
use crate::model::errno::Errno;
use crate::model::signals::set::{SIGNALS, Set};
use crate::model::vma::{Protection, VmaFlags};
use crate::task::address_space::AddressSpace;
use crate::task::flow::Flow;
use crate::task::process::{LeftThread, Process};
use crate::task::thread::Thread;
use crate::task::{blocked, endpoint_registry, pci};

/// Period in which a waiting thread looks whether it goes on.
const PERIOD_NS: u64 = 1_000_000;
/// What the base is told if the program cannot leave: no address.
const CANNOT_LEAVE: (u64, u64) = (1, 0);

impl Process {
    /// Whether its threads wait, as it leaves the node.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Acquire)
    }

    /// Applies what the base wants: has all threads come to wait, or go on.
    pub(super) fn update_leaving(&self) {
        let is_leaving = self.pages().is_leaving();
        if is_leaving && !self.is_leaving() {
            // A thread may have come to wait only after the last time was over.
            self.left_threads.lock().clear();
        }
        if self.is_leaving.swap(is_leaving, Ordering::AcqRel) == is_leaving {
            return;
        }
        if is_leaving {
            let handles = self.signals().mark_all();
            blocked::interrupt(self.pages().number(), |thread| thread.wake_result.is_none());
            for handle in handles {
                cores::interrupt(handle.core.load(Ordering::Relaxed));
            }
        } else {
            self.pages().set_left((0, 0));
        }
    }
}

/// Has a thread wait until its program has left, or does not leave after all.
pub(crate) fn wait(thread: Box<Thread>) -> Flow {
    Flow::handler(thread, |mut thread| async move {
        wait_to_leave(&mut thread).await;
        Flow::Continue(thread)
    })
}

async fn wait_to_leave(thread: &mut Thread) {
    let state = thread_state(thread);
    // The program goes on elsewhere: nothing of it ends here.
    let robust_list = core::mem::take(&mut thread.robust_list);
    let clear_child_tid = core::mem::take(&mut thread.clear_child_tid);
    let mut buffer = None;
    if let Some(all) = add_state(&thread.process, state) {
        buffer = write_state(thread, all).await.ok();
        let left = buffer.unwrap_or(CANNOT_LEAVE);
        thread.process.pages().set_left(left);
    }
    let process = alloc::sync::Arc::clone(&thread.process);
    poll_fn(|_| match process.is_leaving() && !process.is_exiting() {
        true => {
            polling::poll_after(PERIOD_NS);
            Poll::Pending
        }
        false => Poll::Ready(()),
    })
    .await;
    if process.is_exiting() {
        return;
    }
    (thread.robust_list, thread.clear_child_tid) = (robust_list, clear_child_tid);
    if let Some((start, size)) = buffer {
        // It is the program's own from now on, if it cannot be unmapped.
        let _ = thread.unmap_buffer(start, whole_pages(size)).await;
    }
}

/// Adds the state of a thread. Returns all if it is the last.
fn add_state(process: &Process, state: LeftThread) -> Option<Vec<LeftThread>> {
    let mut left = process.left_threads.lock();
    left.push(state);
    let is_last = left.len() == process.live_threads.load(Ordering::Acquire) as usize;
    is_last.then(|| core::mem::take(&mut *left))
}

fn whole_pages(size: u64) -> u64 {
    size.next_multiple_of(crate::model::vma::PAGE)
}

/// Writes the state to fresh memory of the program. Returns its address and size.
///
/// # Errors
/// [`Errno::EPERM`] if the program cannot leave; [`Errno::ENOMEM`].
async fn write_state(
    thread: &mut Thread,
    mut threads: Vec<LeftThread>,
) -> Result<(u64, u64), Errno> {
    // Its servers and clients, files of servers, and devices are this node's.
    let is_bound = thread.process.has_mounts()
        || endpoint_registry::has_handles(&thread.process)
        || pci::has_any(&thread.process)
        || thread.process.space().has_registers();
    if is_bound {
        return Err(Errno::EPERM);
    }
    thread.process.take_base_signals();
    let leader = thread.process.pages().pid();
    threads.sort_by_key(|(state, _)| (state.id != leader, state.id));
    if threads.iter().any(|(_, extended)| extended.is_empty()) {
        return Err(Errno::ENOMEM);
    }
    let (vmas, ranges) = own_memory(thread)?;
    let head = head(thread, (&vmas, &ranges), &threads);
    let mut bytes = Vec::new();
    reserve_in(&mut bytes, head.size as usize)?;
    bytes.extend_from_slice(head.as_bytes());
    bytes.extend_from_slice(vmas.as_bytes());
    threads
        .iter()
        .for_each(|(state, _)| bytes.extend_from_slice(state.as_bytes()));
    threads
        .iter()
        .for_each(|(_, extended)| bytes.extend_from_slice(extended));
    bytes.extend_from_slice(ranges.as_bytes());
    let size = bytes.len() as u64;
    let buffer = thread.map_buffer(whole_pages(size)).await?;
    thread.process.space().write(buffer, &bytes)?;
    Ok((buffer, size))
}

/// Returns the mappings that are memory of the node, and their parts that have content.
///
/// # Errors
/// [`Errno::EPERM`] if others share the memory, or the program cannot read all of it; [`Errno::ENOMEM`].
fn own_memory(thread: &Thread) -> Result<(Vec<abi::Vma>, Vec<abi::Range>), Errno> {
    let is_moved = thread.process.region() != (0, 0);
    if !is_moved || thread.process.mm().is_shared() {
        return Err(Errno::EPERM);
    }
    let mut space = thread.process.space();
    let (mut vmas, mut ranges) = (Vec::new(), Vec::new());
    reserve_in(&mut vmas, space.vmas().count())?;
    let mut next = 0;
    while let Some(vma) = space.vmas().next(next) {
        next = vma.end;
        if vma.flags.contains(VmaFlags::BASE) {
            continue;
        }
        if vma.object.is_some() {
            return Err(Errno::EPERM);
        }
        let before = ranges.len();
        add_ranges(&mut space, (vma.start, vma.end), &mut ranges)?;
        if ranges.len() > before && !vma.protection.contains(Protection::READ) {
            return Err(Errno::EPERM);
        }
        vmas.push(abi::Vma {
            start: vma.start,
            end: vma.end,
            protection: vma.protection.bits().into(),
            flags: flags(vma.flags),
        });
    }
    Ok((vmas, ranges))
}

fn add_ranges(
    space: &mut AddressSpace,
    (start, end): (u64, u64),
    ranges: &mut Vec<abi::Range>,
) -> Result<(), Errno> {
    let mut next = start;
    while next < end
        && let Some((start, until)) = space.present_range(next, end)
    {
        reserve_in(ranges, 1)?;
        ranges.push(abi::Range { start, end: until });
        next = until;
    }
    Ok(())
}

fn flags(flags: VmaFlags) -> u32 {
    [
        (VmaFlags::DONT_FORK, abi::DONT_FORK),
        (VmaFlags::WIPE_ON_FORK, abi::WIPE_ON_FORK),
        (VmaFlags::DONT_DUMP, abi::DONT_DUMP),
        (VmaFlags::LOCKED, abi::LOCKED),
    ]
    .into_iter()
    .filter(|(flag, _)| flags.contains(*flag))
    .fold(0, |all, (_, bit)| all | bit)
}

fn head(
    thread: &Thread,
    (vmas, ranges): (&[abi::Vma], &[abi::Range]),
    threads: &[LeftThread],
) -> abi::Running {
    let extended_size = threads.first().map_or(0, |(_, extended)| extended.len());
    let size = size_of::<abi::Running>()
        + size_of_val(vmas)
        + threads.len() * (size_of::<abi::Thread>() + extended_size)
        + size_of_val(ranges);
    let signals = thread.process.signals();
    let space = thread.process.space();
    let (region, heap, stack) = (space.region(), space.heap(), space.stack());
    abi::Running {
        size: size as u64,
        region_start: region.0,
        region_end: region.1,
        heap_start: heap.0,
        heap_end: heap.1,
        stack_start: stack.0,
        stack_end: stack.1,
        signals_of_fds: signals.all_pending(),
        vmas: vmas.len() as u32,
        timers: 0,
        threads: threads.len() as u32,
        extended_size: extended_size as u32,
        auxiliary_size: 0,
        path_size: 0,
        actions: core::array::from_fn(|index| action(&signals, index)),
    }
}

fn action(signals: &crate::model::signals::Signals, index: usize) -> abi::Action {
    const _: () = assert!(abi::SIGNALS == SIGNALS as usize);
    let action = signals.action(index as u32 + 1);
    abi::Action {
        handler: action.handler,
        flags: action.flags,
        restorer: action.restorer,
        mask: action.mask,
    }
}

fn thread_state(thread: &Thread) -> LeftThread {
    let of = &thread.context.registers;
    let bases = thread.extended.bases();
    let blocked: Set = thread.process.signals().blocked(thread.id);
    let (robust_list, robust_list_size) = thread.robust_list;
    let rseq = thread.rseq;
    let priority = thread.handle.base_priority();
    let state = abi::Thread {
        id: thread.id,
        slot: 0,
        blocked,
        rax: of.rax,
        rbx: of.rbx,
        rcx: of.rcx,
        rdx: of.rdx,
        rsi: of.rsi,
        rdi: of.rdi,
        rbp: of.rbp,
        rsp: of.rsp,
        r8: of.r8,
        r9: of.r9,
        r10: of.r10,
        r11: of.r11,
        r12: of.r12,
        r13: of.r13,
        r14: of.r14,
        r15: of.r15,
        rip: of.rip,
        rflags: of.rflags,
        fs_base: bases.fs,
        gs_base: bases.gs,
        clear_child_tid: thread.clear_child_tid,
        robust_list,
        robust_list_size,
        rseq: rseq.map_or(0, |rseq| rseq.area),
        rseq_size: rseq.map_or(0, |rseq| rseq.size),
        rseq_signature: rseq.map_or(0, |rseq| rseq.signature),
        stack_start: thread.alt_stack.start,
        stack_size: thread.alt_stack.size,
        stack_flags: thread.alt_stack.flags.into(),
        cpu_time_ns: 0,
        nice: priority.nice(),
        policy: priority.policy(),
        priority: priority.realtime(),
        reserved: 0,
    };
    let mut extended = Vec::new();
    // Without memory it is missing, and the program does not leave.
    if reserve_in(&mut extended, thread.extended.bytes().len()).is_ok() {
        extended.extend_from_slice(thread.extended.bytes());
    }
    (state, extended)
}
