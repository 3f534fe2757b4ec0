//! A row of the table of system calls, and what is made of it: a [`Call`], which describes it, and
//! its `Handler`. They are apart so that the command can list the calls without linking the
//! functions of this kernel.
//!
//! A property in a row, as in `7 poll => once timeout_ms(2) [delegated]`, is a method of [`Call`].

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
    Masked(MaskArgument),
    /// Refused.
    Refused {
        /// Error that the program gets.
        errno: Errno,
        /// Reason.
        why: &'static str,
    },
}

/// Argument of a call that contains a signal mask, by its index. Its value may be 0: no mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskArgument {
    /// The mask's address; the next argument is its size.
    Address(usize),
    /// The address of a structure of both.
    Structure(usize),
}

/// Argument of a call that contains its timeout, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutArgument {
    /// A timeout in ms; infinite if negative.
    Milliseconds(usize),
    /// The address of a `struct timespec`, or 0.
    Timespec(usize),
}

/// When a call is restarted that a signal has interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// If its handler has SA_RESTART, or no handler runs.
    Usual,
    /// If no handler runs.
    WithoutHandler,
    /// As [`Self::Usual`] if this argument is 0, else as [`Self::WithoutHandler`].
    ByArgument(usize),
    /// Never.
    Never,
}

/// A system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its number.
    pub number: u64,
    /// Its name.
    pub name: &'static str,
    /// Its handling.
    pub kind: Kind,
    /// When it is restarted.
    pub restart: Restart,
    /// Argument with its timeout, if the base does not write back the remaining time itself.
    pub timeout: Option<TimeoutArgument>,
    /// Argument with flags, of which TIMER_ABSTIME makes its timeout a point in time.
    pub timer_flags: Option<usize>,
    /// Whether it may change the thread's user id.
    pub sets_uid: bool,
    /// Whether it may access a terminal, for which the base checks its caller's signal mask.
    pub uses_terminal: bool,
    /// How many of its first arguments are descriptors, none of which may be that of the mm mirror.
    pub spared_fds: usize,
}

/// The properties, as named in the table.
impl Call {
    /// A call that has none.
    pub(super) const fn new(number: u64, name: &'static str, kind: Kind) -> Self {
        Self {
            number,
            name,
            kind,
            restart: Restart::Usual,
            timeout: None,
            timer_flags: None,
            sets_uid: false,
            uses_terminal: false,
            spared_fds: 0,
        }
    }

    /// A handler ends it even with SA_RESTART: it has a timeout or waits for a signal (signal(7) of
    /// Linux).
    pub(super) const fn once(mut self) -> Self {
        self.restart = Restart::WithoutHandler;
        self
    }

    /// The same, if argument `at` is not 0.
    pub(super) const fn once_with(mut self, at: usize) -> Self {
        self.restart = Restart::ByArgument(at);
        self
    }

    /// Any signal ends it: close(2) has closed the file, and what restart_syscall(2) goes on with is
    /// forgotten.
    pub(super) const fn never_restarted(mut self) -> Self {
        self.restart = Restart::Never;
        self
    }

    /// Argument `at` is its timeout in ms.
    pub(super) const fn timeout_ms(mut self, at: usize) -> Self {
        self.timeout = Some(TimeoutArgument::Milliseconds(at));
        self
    }

    /// Argument `at` is the address of its timeout.
    pub(super) const fn timeout(mut self, at: usize) -> Self {
        self.timeout = Some(TimeoutArgument::Timespec(at));
        self
    }

    /// Argument `at` may say that its timeout is a point in time.
    pub(super) const fn timer_flags(mut self, at: usize) -> Self {
        self.timer_flags = Some(at);
        self
    }

    /// It may change the thread's user id.
    pub(super) const fn sets_uid(mut self) -> Self {
        self.sets_uid = true;
        self
    }

    /// It may access a terminal.
    pub(super) const fn terminal(mut self) -> Self {
        self.uses_terminal = true;
        self
    }

    /// It closes, replaces, copies or controls its first `count` arguments, which are descriptors.
    pub(super) const fn spares_mirror(mut self, count: usize) -> Self {
        self.spared_fds = count;
        self
    }
}

/// What follows from the properties.
impl Call {
    /// Whether it is restarted after a signal, for which a handler with SA_RESTART runs or none.
    pub(super) fn is_restarted(&self, has_handler: bool, arguments: &[u64; 6]) -> bool {
        match self.restart {
            Restart::Usual => true,
            Restart::WithoutHandler => !has_handler,
            Restart::ByArgument(at) => !has_handler || arguments[at] == 0,
            Restart::Never => false,
        }
    }

    /// Returns the argument with its timeout, if that is relative.
    pub(super) fn relative_timeout(&self, arguments: &[u64; 6]) -> Option<TimeoutArgument> {
        /// `TIMER_ABSTIME`.
        const ABSOLUTE: u64 = 1;
        let is_absolute = |at: usize| arguments[at] & ABSOLUTE != 0;
        self.timeout
            .filter(|_| !self.timer_flags.is_some_and(is_absolute))
    }
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
        Kind::Masked(MaskArgument::Address($argument))
    };
    (masked_by_structure $argument:literal) => {
        Kind::Masked(MaskArgument::Structure($argument))
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

macro_rules! table {
    ($($number:literal $name:ident => $($property:ident $(($argument:literal))?)* [$($kind:tt)+],)+) => {
        /// All calls, ascending.
        pub const TABLE: &[Call] = &[$(
            Call::new($number, stringify!($name), $crate::syscall::call::kind!($($kind)+))
                $(.$property($($argument)?))*
        ),+];

        /// Returns the function that executes a call here.
        pub(super) fn handler(number: u64) -> Option<Handler> {
            match number {
                $($number => $crate::syscall::call::handler!($($kind)+),)+
                _ => None,
            }
        }
    };
}

pub(super) use {handler, kind, table};

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: Call = Call::new(0, "call", Kind::Delegated);

    #[test]
    fn restarts_follow_handler_and_timeout() {
        let (infinite, timed) = ([0; 6], [0, 0, 0, 1, 0, 0]);
        let both = |call: Call, arguments| {
            [false, true].map(|has_handler| call.is_restarted(has_handler, arguments))
        };
        assert_eq!(both(CALL, &timed), [true, true]);
        assert_eq!(both(CALL.once(), &infinite), [true, false]);
        assert_eq!(both(CALL.once_with(3), &infinite), [true, true]);
        assert_eq!(both(CALL.once_with(3), &timed), [true, false]);
        assert_eq!(both(CALL.never_restarted(), &infinite), [false, false]);
    }

    #[test]
    fn only_relative_timeouts_are_found() {
        let (relative, absolute) = ([0, 2, 0, 0, 0, 0], [0, 3, 0, 0, 0, 0]);
        let sleep = CALL.timeout(2).timer_flags(1);
        let timespec = Some(TimeoutArgument::Timespec(2));
        assert_eq!(sleep.relative_timeout(&relative), timespec);
        assert_eq!(sleep.relative_timeout(&absolute), None);
        assert_eq!(CALL.timeout(2).relative_timeout(&absolute), timespec);
        assert_eq!(CALL.relative_timeout(&relative), None);
    }
}
