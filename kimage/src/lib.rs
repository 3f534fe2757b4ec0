//! Linux kernel images, and what can be known of a running kernel from outside.
//!
//! A stock x86-64 kernel comes as a bzImage (what `/boot/vmlinuz-*` is) or as the ELF file `vmlinux` that a
//! bzImage carries compressed. This crate reads both without running them:
//!
//! | question | answer |
//! |---|---|
//! | where do its bytes go, where does it start? | [`inspect`] -> [`Loadable`] |
//! | the ELF file inside | [`vmlinux`] |
//! | at which address was symbol `x` linked? | [`Symbols`], from the image's own kallsyms |
//! | at which offset lies member `y` of structure `z`? | [`Btf`], from the image's own type information |
//! | what does the kernel in that memory log, did it panic? | [`log`], over [`PhysicalMemory`] |
//! | what lies at its virtual address `a`, what do its processors do? | [`running`], over the same |
//!
//! Everything read is taken as hostile: a file may come from anyone, and a kernel's memory is written by that
//! kernel while we read it. Bad input gives an error, never a panic, an endless loop or unbounded memory.

mod btf;
mod bytes;
mod bzimage;
mod elf;
mod error;
mod image;
mod loadable;
pub mod log;
mod memory;
mod part;
mod payload;
pub mod running;
mod symbols;

pub use btf::{Btf, BtfError, Field, LookupError};
pub use error::ImageError;
pub use image::{inspect, vmlinux};
pub use loadable::{Format, Loadable, Segment};
pub use memory::{PhysicalMemory, ReadError};
pub use payload::unpack_module;
pub use symbols::{Symbol, SymbolError, Symbols};
