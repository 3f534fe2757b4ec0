//! POSIX timers.

/// A POSIX timer of the program, which the base runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer {
    /// Its id.
    pub id: u32,
    /// Whether it signals a single thread.
    pub to_thread: bool,
}
