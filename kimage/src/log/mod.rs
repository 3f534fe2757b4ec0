//! A kernel's log, read from its memory: without driver, console or help of that kernel, also after
//! it has crashed.
//!
//! The kernel stores its log in a ring of records (described in kernel/printk/printk_ringbuffer.c).
//! Reading it from outside takes three steps:
//!
//! 1. [`LogLayout::from_vmlinux`]: once, from the image: link addresses and structure offsets;
//!    small, to be stored;
//! 2. [`locate()`]: in the memory: physical and virtual placement of the kernel (KASLR);
//! 3. [`LogReader`]: the records, from any number, while the kernel continues to write.
//!
//! ```no_run
//! # use std::error::Error;
//! # fn show(vmlinux: &[u8], memory: &dyn kimage::PhysicalMemory) -> Result<(), Box<dyn Error>> {
//! use kimage::log::{LogLayout, LogReader, format_record, locate};
//!
//! let layout = LogLayout::from_vmlinux(vmlinux)?;
//! let placement = locate(&layout, memory).ok_or("it has not logged anything yet")?;
//! let mut log = LogReader::new(&layout, placement, memory);
//! while let Some(record) = log.next_record()? {
//!     println!("{}", format_record(&record));
//! }
//! # Ok(())
//! # }
//! ```

mod error;
mod format;
mod kernel;
mod layout;
mod liveness;
mod locate;
mod lwk;
mod placement;
mod reader;
mod record;
mod ring;

pub use error::LogError;
pub use format::format_record;
pub use layout::{LayoutError, LogLayout};
pub use liveness::{RESCHEDULE_VECTOR, halted, in_program, resched_count};
pub use locate::{locate, panicked};
pub use placement::Placement;
pub use reader::LogReader;
pub use record::{Caller, Record};
