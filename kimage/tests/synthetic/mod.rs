//! Kernel images and kernels made up for tests: small, but built as the kernel's own build builds them.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test program uses a part of this"
)]

pub mod btf;
pub mod bzimage;
pub mod image;
pub mod kallsyms;
pub mod memory;
pub mod printk;
