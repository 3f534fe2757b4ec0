//! A kernel's log, read from its memory: no driver, no console, no help of that kernel, also after its death.
//!
//! The kernel keeps its log in a ring of records (kernel/printk/printk_ringbuffer.c; its opening comment tells how).
//! To read it from outside takes three steps:
//!
//! 1. [`LogLayout::from_vmlinux`]: from the image, once: link addresses and structure offsets. Small, to be kept;
//! 2. [`locate`]: in the memory: where the kernel has put itself, physically and virtually (KASLR);
//! 3. [`LogReader`]: the records, from any number on, while the kernel goes on writing.
//!
//! ```no_run
//! # fn show(vmlinux: &[u8], memory: &dyn kimage::PhysicalMemory) -> Result<(), Box<dyn std::error::Error>> {
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
mod locate;
mod lwk;
mod placement;
mod pulse;
mod reader;
mod record;
mod ring;

pub use error::LogError;
pub use format::format_record;
pub use layout::{LayoutError, LogLayout};
pub use locate::{locate, panicked};
pub use placement::Placement;
pub use pulse::{RESCHEDULE_VECTOR, halted, in_program, pulse};
pub use reader::LogReader;
pub use record::{Caller, Record};
