//! What is left of a node: its memory as a dump, where its cores are, and gdb's view of both.
//!
//! Everything is read from outside, from the node's memory; nothing in the node helps or must be
//! prepared. Only the registers and the backtraces of a node that runs take an interrupt, which its
//! kernel answers by itself (see [`node::nmi`](crate::node::nmi)).
//!
//! | | |
//! |---|---|
//! | [`dump`] | an ELF core file of a node's memory, as the kernel's own kdump writes it |
//! | [`Store`] | the folder where dumps are kept, and how many |
//! | [`keep_if_wanted`] | for its supervisor |
//! | [`backtrace`] | makes a node's kernel print where each of its cores is |
//! | [`debug`] | gdb's remote protocol over a node's memory |

mod backtrace;
pub mod debug;
mod dump;
mod notes;
mod store;
mod subject;
mod vmcore;

pub use backtrace::{Backtrace, BacktraceError, backtrace};
pub use dump::{Doubt, DumpError, DumpRequest, Dumped, Target, dump, keep_if_wanted};
pub use store::{FOLDER, KeptDump, Limits, LimitsError, Store, StoreError};
pub use subject::{Subject, SubjectError};
pub use vmcore::WriteError;
