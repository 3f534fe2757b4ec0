//! Synthetic kernel images and kernels: small, but with the structure of the kernel's own build.
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
