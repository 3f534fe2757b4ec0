//! Signal stacks and the return from handlers.

use alloc::boxed::Box;

use crate::model::errno::Errno;
use crate::model::signals::frame::{self, AltStack};
use crate::model::signals::info::Info;
use crate::model::signals::set::UNBLOCKABLE;
use crate::syscall::delegate::finish;
use crate::syscall::exception::SEGMENTATION_FAULT;
use crate::task::flow::Flow;
use crate::task::thread::Thread;

/// Minimum size of an alternate stack (`MINSIGSTKSZ`).
const STACK_MIN: u64 = 2048;

/// sigaltstack(2).
pub(crate) fn alternate_stack(thread: &mut Thread, [new, old, ..]: [u64; 6]) -> Result<u64, Errno> {
    let pointer = thread.context.registers.rsp;
    let before = thread.alt_stack.to_bytes(pointer);
    if new != 0 {
        let mut bytes = [0; AltStack::BYTES];
        thread.process.space().read(new, &mut bytes)?;
        let wanted = AltStack::from_bytes(&bytes);
        if thread.alt_stack.size > 0 && thread.alt_stack.holds(pointer) {
            return Err(Errno::EPERM);
        }
        thread.alt_stack = checked(wanted)?;
    }
    if old != 0 {
        thread.process.space().write(old, &before)?;
    }
    Ok(0)
}

fn checked(wanted: AltStack) -> Result<AltStack, Errno> {
    match wanted.flags & !AltStack::AUTO_DISARM {
        AltStack::DISABLED => Ok(AltStack {
            start: 0,
            size: 0,
            ..wanted
        }),
        0 if wanted.size < STACK_MIN => Err(Errno::ENOMEM),
        0 => Ok(wanted),
        _ => Err(Errno::EINVAL),
    }
}

/// rt_sigreturn(2): restores the context that the signal interrupted.
pub(crate) fn sigreturn(mut thread: Box<Thread>, _: [u64; 6]) -> Flow {
    let restored = restore(&mut thread);
    if restored == Err(Errno::EBASEPAGE) {
        return finish(thread, restored.map(|()| 0));
    }
    if restored.is_err() {
        let fault = Info::fault(SEGMENTATION_FAULT as u32, Info::KERNEL, 0);
        thread.process.signals().force(thread.id, fault);
    }
    Flow::Continue(thread)
}

fn restore(thread: &mut Thread) -> Result<(), Errno> {
    // The handler's return popped the restorer's address.
    let address = thread.context.registers.rsp.wrapping_sub(8);
    let mut bytes = [0; frame::SIZE];
    thread.process.space().read(address, &mut bytes)?;
    let restored = frame::read(&bytes);
    let size = thread.extended.bytes().len();
    let mut extended = alloc::vec![0; size];
    match restored.extended {
        0 => thread.extended.reset(),
        at => {
            thread.process.space().read(at, &mut extended)?;
            thread.extended.set_bytes(&extended);
        }
    }
    thread.extended.load();
    thread.context.registers = restored.registers;
    // As on Linux, an invalid one is ignored.
    if let Ok(alt_stack) = checked(restored.alt_stack) {
        thread.alt_stack = alt_stack;
    }
    let blocked = restored.blocked & !UNBLOCKABLE;
    thread.process.signals().block(thread.id, blocked);
    Ok(())
}
