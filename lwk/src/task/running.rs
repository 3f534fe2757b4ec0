//! Taking over a running process of the base, which has become its own proxy: the base hands over its
//! state (insula_running.h), and its threads go on here.

#![allow(
    clippy::vec_box,
    reason = "a thread is moved between lists by its address"
)]

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use insula_abi::lwk::request;
use insula_bare::{Registers, SegmentBases};

use crate::base::slot::Slot;
use crate::hw::clock;
use crate::hw::memory::room::{NoMemory, reserve_in, zeroed};
use crate::info;
use crate::model::elf::FormatError;
use crate::model::errno::Errno;
use crate::model::rseq::Registration;
use crate::model::running::{Running, RunningThread, SIZE_MAX};
use crate::model::scheduling::Priority;
use crate::model::signals::frame::AltStack;
use crate::model::vma::{PAGE, Protection};
use crate::task::address_space::Placement;
use crate::task::flow::Flow;
use crate::task::process::ProgramInfo;
use crate::task::program_file::LoadError;
use crate::task::thread::Thread;
use crate::task::{layout, reap, run_queue};

/// Takes over the process of a thread, which is its leader. On failure the process is killed.
pub(super) fn take_over(thread: Box<Thread>) -> Flow {
    Flow::handler(thread, |mut thread| async move {
        match take_over_process(&mut thread).await {
            Ok(others) => others.into_iter().for_each(run_queue::enqueue),
            Err(error) => {
                const KILLED: u64 = 9;
                info!("process {}: it cannot go on here: {error:?}", thread.id);
                thread.exit_process(KILLED);
            }
        }
        Flow::Continue(thread)
    })
}

/// Takes over a process. Returns its other threads.
async fn take_over_process(thread: &mut Thread) -> Result<Vec<Box<Thread>>, LoadError> {
    let block = read_state(thread).await?;
    let bounds = thread.process.space().bounds();
    let running = Running::parse(&block, bounds)?;
    thread.process.set_region(running.region);
    thread.process.space().take_over(&running)?;
    set_layout(thread, &running);
    *thread.process.program_info.lock() = ProgramInfo {
        name: copied(running.path)?,
        // Its own process is the proxy.
        executable: None,
        auxiliary: copied(running.auxiliary)?,
    };
    let mut threads = running.threads();
    let Some(leader) = threads.next().filter(|leader| leader.state.id == thread.id) else {
        return Err(FormatError("its first thread is not its leader").into());
    };
    restore(thread, &leader);
    let others = new_threads(thread, threads)?;
    take_over_signals(thread, &running, leader.state.blocked)?;
    Ok(others)
}

/// Has the base copy the state to the program's memory, and reads it there. The limits are read on
/// the way.
async fn read_state(thread: &mut Thread) -> Result<Vec<u8>, LoadError> {
    let pages = *thread.process.pages();
    let (at, size) = (pages.running(), pages.arguments_size());
    if size > SIZE_MAX {
        return Err(Errno(7).into()); // E2BIG
    }
    let mapped = size.next_multiple_of(PAGE).max(PAGE);
    let writable = Protection::READ | Protection::WRITE;
    let place = Placement::Fixed(at);
    thread
        .change_space(move |space| space.map(place, mapped, writable))
        .await?;
    layout::inherit_limits(thread, at).await?;
    let copied = thread
        .remote_syscall(request::ARGUMENTS, [at, size, 0, 0, 0, 0])
        .await?;
    let mut block = zeroed(copied.min(size) as usize)?;
    thread.process.space().read(at, &mut block)?;
    thread.unmap_buffer(at, mapped).await?;
    Ok(block)
}

fn copied(bytes: &[u8]) -> Result<Vec<u8>, NoMemory> {
    let mut copy = Vec::new();
    reserve_in(&mut copy, bytes.len())?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// Sets what the growth of the stack and the place of new mappings depend on.
fn set_layout(thread: &Thread, running: &Running<'_>) {
    let limit = layout::stack_limit(thread);
    let mut space = thread.process.space();
    let (bottom, top) = space.bounds();
    let stack = running.stack.unwrap_or((top, top));
    space.set_stack(stack, limit);
    space.set_mappings_end(layout::mappings_end((bottom, stack.1), limit));
}

/// Sets the actions, the mask of the leader, and the timers, then takes the signals that have come
/// meanwhile.
fn take_over_signals(
    thread: &Thread,
    running: &Running<'_>,
    blocked: u64,
) -> Result<(), LoadError> {
    let process = &thread.process;
    {
        let mut signals = process.signals();
        for (signal, action) in running.actions() {
            signals.set_action(signal, action);
        }
        signals.block(thread.id, blocked);
        for timer in running.timers() {
            signals.reserve_timer()?;
            signals.add_timer(timer);
        }
    }
    process.add_signals_of_fds(running.signals_of_fds);
    process.is_taking_over.store(false, Ordering::Release);
    process.take_base_signals();
    Ok(())
}

/// Creates the other threads. If one cannot be created there is none.
fn new_threads<'a>(
    leader: &Thread,
    states: impl Iterator<Item = RunningThread<'a>>,
) -> Result<Vec<Box<Thread>>, LoadError> {
    let mut threads = Vec::new();
    for state in states {
        match new_thread(leader, &state) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                for mut thread in threads {
                    thread.discard();
                    reap::end_thread(thread);
                }
                return Err(error);
            }
        }
    }
    Ok(threads)
}

fn new_thread(leader: &Thread, state: &RunningThread<'_>) -> Result<Box<Thread>, LoadError> {
    let process = &leader.process;
    let (pages, abi) = (process.pages(), state.state);
    let is_free = abi.slot != pages.slot() && !process.signals().has(abi.id);
    if !is_free || !pages.area().slot_belongs_to(abi.slot, pages.number()) {
        return Err(FormatError("a thread has no syscall slot").into());
    }
    let slot = Slot::attach(pages.area(), abi.slot);
    let scheduling = leader.inherited();
    let process = process.clone();
    let mut thread = Thread::new(process, (abi.id, slot), abi.blocked, scheduling)?;
    restore(&mut thread, state);
    Ok(thread)
}

/// Sets the state of a thread that does not run.
fn restore(thread: &mut Thread, state: &RunningThread<'_>) {
    let abi = &state.state;
    thread.context.registers = registers(state);
    thread.extended.set_bytes(state.extended);
    thread.extended.set_bases(SegmentBases {
        fs: abi.fs_base,
        gs: abi.gs_base,
    });
    thread.clear_child_tid = abi.clear_child_tid;
    thread.robust_list = (abi.robust_list, abi.robust_list_size);
    thread.rseq = (abi.rseq != 0).then_some(Registration {
        area: abi.rseq,
        size: abi.rseq_size,
        signature: abi.rseq_signature,
    });
    thread.alt_stack = AltStack {
        start: abi.stack_start,
        size: abi.stack_size,
        flags: abi.stack_flags as u32,
    };
    thread.account_run_time(clock::ns_to_ticks(abi.cpu_time_ns));
    let priority = Priority::default().with_nice(abi.nice);
    // A policy that this kernel lacks is an ordinary one here.
    let priority = priority.with_policy(abi.policy, abi.priority);
    let ordinary = Priority::default().with_nice(abi.nice);
    thread.handle.set_priority(priority.unwrap_or(ordinary));
}

fn registers(state: &RunningThread<'_>) -> Registers {
    let abi = &state.state;
    Registers {
        rax: abi.rax,
        rbx: abi.rbx,
        rcx: abi.rcx,
        rdx: abi.rdx,
        rsi: abi.rsi,
        rdi: abi.rdi,
        rbp: abi.rbp,
        rsp: abi.rsp,
        r8: abi.r8,
        r9: abi.r9,
        r10: abi.r10,
        r11: abi.r11,
        r12: abi.r12,
        r13: abi.r13,
        r14: abi.r14,
        r15: abi.r15,
        rip: abi.rip,
        rflags: abi.rflags,
    }
}
