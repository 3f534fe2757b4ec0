//! A row of the table of system calls, and what is made of it: a [`Call`], which describes it, and
//! its `Handler`. They are apart so that the command can list the calls without linking the
//! functions of this kernel.

use alloc::boxed::Box;

use crate::model::errno::Errno;
use crate::task::flow::Flow;
use crate::task::thread::Thread;

/// Handling of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Executed by this kernel.
    Local,
    /// Executed by the base.
    Delegated,
    /// Executed by the base, with the signal mask argument handled by this kernel.
    Masked {
        /// Index of that argument.
        argument: usize,
    },
    /// Refused.
    Refused {
        /// Error that the program gets.
        errno: Errno,
        /// Reason.
        why: &'static str,
    },
}

/// A system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its number.
    pub number: u64,
    /// Its name.
    pub name: &'static str,
    /// Whether it is restarted when a signal has interrupted it and the handler has SA_RESTART. Not
    /// so calls with a timeout or that wait for a signal (signal(7) of Linux), and close(2), which
    /// has closed the file.
    pub is_restartable: bool,
    /// Its handling.
    pub kind: Kind,
}

/// Function that executes a local call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Handler {
    /// Decides how the thread goes on.
    Local(fn(Box<Thread>, [u64; 6]) -> Flow),
    /// Returns the result at once.
    Immediate(fn(&mut Thread, [u64; 6]) -> Result<u64, Errno>),
}

macro_rules! kind {
    (delegated) => {
        Kind::Delegated
    };
    (masked $argument:literal) => {
        Kind::Masked {
            argument: $argument,
        }
    };
    (local $handler:path) => {
        Kind::Local
    };
    (immediate $handler:path) => {
        Kind::Local
    };
    (refused $errno:ident $why:literal) => {
        Kind::Refused {
            errno: Errno::$errno,
            why: $why,
        }
    };
}

macro_rules! handler {
    (local $handler:path) => {
        Some(Handler::Local($handler))
    };
    (immediate $handler:path) => {
        Some(Handler::Immediate($handler))
    };
    ($($kind:tt)+) => {
        None
    };
}

macro_rules! is_restartable {
    () => {
        true
    };
    (once) => {
        false
    };
}

macro_rules! table {
    ($($number:literal $name:ident => $($once:ident)? [$($kind:tt)+],)+) => {
        /// All calls, ascending.
        pub const TABLE: &[Call] = &[$(Call {
            number: $number,
            name: stringify!($name),
            is_restartable: $crate::syscall::call::is_restartable!($($once)?),
            kind: $crate::syscall::call::kind!($($kind)+),
        }),+];

        /// Returns the function that executes a call here.
        pub(super) fn handler(number: u64) -> Option<Handler> {
            match number {
                $($number => $crate::syscall::call::handler!($($kind)+),)+
                _ => None,
            }
        }
    };
}

pub(super) use {handler, is_restartable, kind, table};
