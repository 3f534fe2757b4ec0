//! Linux kernel images, and inspection of a running kernel from outside.
//!
//! A stock x86-64 kernel comes as a bzImage (`/boot/vmlinuz-*`) or as the ELF file `vmlinux` that a
//! bzImage contains compressed. This crate reads both without running them:
//!
//! | question | answer |
//! |---|---|
//! | where are its bytes loaded, where does it start? | [`inspect`] -> [`Loadable`] |
//! | the ELF file inside | [`vmlinux`] |
//! | what is the link address of symbol `x`? | [`Symbols`], from the image's own kallsyms |
//! | what is the offset of member `y` of structure `z`? | [`Btf`], from the image's own type
//! information |
//! | what does a kernel in memory log, did it panic? | [`log`], over [`PhysicalMemory`] |
//! | what is at its virtual address `a`, what do its processors execute? | [`running`], over the
//! same |
//! | are its code and constants those of its image? | [`mod@reference`] |
//!
//! All input is treated as hostile: a file may come from anyone, and a kernel's memory is written
//! by that kernel while it is read. Bad input results in an error, never in a panic, an endless
//! loop or unbounded memory.

mod btf;
mod bytes;
mod bzimage;
mod elf;
mod error;
mod image;
mod loadable;
pub mod log;
mod memory;
mod name_index;
mod part;
mod payload;
pub mod reference;
pub mod running;
mod symbols;

pub use btf::{Btf, BtfError, Field, LookupError, Type};
pub use error::ImageError;
pub use image::{inspect, vmlinux};
pub use loadable::{Format, Loadable, Segment};
pub use memory::{PhysicalMemory, ReadError};
pub use payload::unpack_module;
pub use symbols::{Symbol, SymbolError, Symbols};
