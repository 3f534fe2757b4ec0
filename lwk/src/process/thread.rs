//! A thread of a program.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use insula_abi::lwk::{RELEASE_MAPPED, base_state, request};
use insula_bare::{ExtendedState, UserContext, cpu};

use super::Process;
use super::areas::Rights;
use super::errno::{Errno, of_result};
use super::space::Space;
use crate::delegation::{Answer, Desk};

/// The proxy has gone: there is nobody to ask, and the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// A thread.
#[derive(Debug)]
pub struct Thread {
    /// Its registers.
    pub context: UserContext,
    /// Its program is still to be loaded.
    pub is_new: bool,
    /// Its extended registers, while it does not run.
    pub extended: ExtendedState,
    /// The program that it is of.
    pub process: Arc<Process>,
    /// Its id, for the program and on the base.
    pub id: u64,
    /// Where the base executes its calls.
    pub desk: Desk,
    /// The core that it is to run on.
    pub core: u32,
    /// Where its end is told: a word that becomes 0, and is a futex.
    pub clear_at_end: u64,
    /// Its list of robust futexes: address of the head, and its size.
    pub robust: (u64, u64),
    /// Signals that it does not want now.
    pub signal_mask: u64,
}

impl Thread {
    /// A thread of `process` with a desk; its registers are all zero.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn new(process: Arc<Process>, id: u64, desk: Desk, core: u32) -> Result<Box<Self>, Errno> {
        process.threads.fetch_add(1, Ordering::AcqRel);
        let extended = ExtendedState::new();
        let Some(extended) = extended else {
            process.threads.fetch_sub(1, Ordering::AcqRel);
            return Err(Errno::ENOMEM);
        };
        Ok(Box::new(Self {
            context: UserContext::default(),
            is_new: false,
            extended,
            process,
            id,
            desk,
            core,
            clear_at_end: 0,
            robust: (0, 0),
            signal_mask: 0,
        }))
    }

    /// Looks for the answer to what its desk was asked; deals with a question in between.
    ///
    /// # Errors
    /// [`Gone`].
    pub fn poll(&mut self) -> Result<Option<(u64, u64)>, Gone> {
        match self.desk.poll() {
            Some(Answer::Result { result, value }) => Ok(Some((result, value))),
            Some(Answer::Fault { address, write }) => {
                self.resolve(address, write);
                Ok(None)
            }
            None if self.process.is_ending() => Err(Gone),
            None => {
                if self.process.fatal_signal().is_some() {
                    self.desk.interrupt();
                }
                Ok(None)
            }
        }
    }

    /// Answers a question of the base: makes a page present, or says that it cannot be.
    fn resolve(&mut self, address: u64, write: bool) {
        let access = if write { Rights::WRITE } else { Rights::READ };
        let resolved = self.process.space().fault(address, access);
        let error = resolved.err().map_or(0, Errno::as_result);
        self.desk.post(request::RESOLVED, [error, 0, 0, 0, 0, 0]);
    }

    /// Asks the base and waits for the answer, on this core, which does nothing else meanwhile.
    ///
    /// # Errors
    /// [`Gone`].
    pub fn ask(&mut self, number: u64, arguments: [u64; 6]) -> Result<(u64, u64), Gone> {
        self.desk.post(number, arguments);
        loop {
            if let Some(answer) = self.poll()? {
                return Ok(answer);
            }
            if self.process.pages().base_state() >= base_state::ENDED {
                return Err(Gone);
            }
            cpu::take_interrupts();
            cpu::relax();
        }
    }

    /// Has the base make a system call.
    ///
    /// # Errors
    /// What it answered; [`Errno::EINTR`] if the proxy is gone: the process is about to end.
    pub fn call(&mut self, number: u64, arguments: [u64; 6]) -> Result<u64, Errno> {
        match self.ask(number, arguments) {
            Ok((result, _)) => of_result(result),
            Err(Gone) => Err(Errno::EINTR),
        }
    }

    /// Does something with the program's memory that may need the base to let go of pages.
    pub fn with_space<T>(
        &mut self,
        deed: impl FnOnce(&mut Space, &mut super::space::Release) -> T,
    ) -> T {
        let process = Arc::clone(&self.process);
        let mut space = process.space();
        let pages = *process.pages();
        deed(&mut space, &mut |start, end, mapped_only| {
            if !pages.is_reached(start, end) {
                return true;
            }
            let ticket = process.next_ticket();
            let flags = if mapped_only { RELEASE_MAPPED } else { 0 };
            let released = self.ask(request::RELEASE, [start, end - start, ticket, flags, 0, 0]);
            released.is_ok_and(|(result, _)| result == 0) && pages.released() == ticket
        })
    }

    /// Ends the process, with a status as of wait(2). The proxy ends as the program did.
    pub fn exit_process(&mut self, status: u64) {
        if self.process.end() {
            self.desk.post(request::EXIT, [status, 0, 0, 0, 0, 0]);
        }
    }

    /// Ends this thread alone; the last one ends the process.
    pub fn exit(&mut self, status: u64) {
        if self.process.threads.load(Ordering::Acquire) == 1 {
            return self.exit_process(status);
        }
        if self.clear_at_end != 0 {
            let word = self.clear_at_end;
            if self.process.space().write(word, &[0; 4]).is_ok() {
                super::futex::wake((self.process.pages().number(), word), 1, u32::MAX);
            }
        }
        self.desk.post(request::THREAD_END, [0; 6]);
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.process.threads.fetch_sub(1, Ordering::AcqRel);
    }
}
