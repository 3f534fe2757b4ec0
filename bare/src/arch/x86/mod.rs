//! x86-64, 64-bit mode. Source: Intel SDM volume 3 and AMD APM volume 2.

pub mod apic;
pub mod cpu;
mod descriptor;
pub mod extended_state;
mod machine_check;
pub mod mitigation;
pub mod paging;
pub mod per_core;
pub mod start;
pub mod trap;
pub mod user;

#[cfg(target_os = "none")]
mod assembly {
    core::arch::global_asm!(include_str!("boot.S"), options(att_syntax));
    core::arch::global_asm!(include_str!("trap.S"), options(att_syntax));
}
