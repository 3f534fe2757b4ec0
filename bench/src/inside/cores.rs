//! Interrupts from one core of the base to another, by a system call.

#![allow(unsafe_code, reason = "membarrier has no safe interface")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::libc;

use super::pin;

/// A thread that runs on another core, so that a barrier has to interrupt it.
pub struct OtherCore {
    thread: Option<JoinHandle<()>>,
}

/// Tells the thread to end. There is one of them at a time.
static OVER: AtomicBool = AtomicBool::new(false);

impl OtherCore {
    /// Starts the thread on that core.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn start(core: usize) -> Result<Self, Errno> {
        membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)?;
        OVER.store(false, Ordering::Relaxed);
        let (pinned, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            // The caller measures only after the thread is pinned.
            let _ = pinned.send(pin(0, core).is_ok());
            while !OVER.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let other = Self {
            thread: Some(thread),
        };
        match receiver.recv() {
            Ok(true) => Ok(other),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Interrupts it, and waits until it has handled the interrupt.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn interrupt(&self) -> Result<(), Errno> {
        membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
    }

    /// A membarrier call that interrupts nobody.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn query(&self) -> Result<(), Errno> {
        membarrier(libc::MEMBARRIER_CMD_QUERY)
    }
}

impl Drop for OtherCore {
    fn drop(&mut self) {
        OVER.store(true, Ordering::Relaxed);
        // The thread does nothing that could fail.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn membarrier(command: libc::c_int) -> Result<(), Errno> {
    // SAFETY: the call takes numbers only, and touches no memory.
    let answer = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    Errno::result(answer).map(drop)
}
