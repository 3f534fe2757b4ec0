//! Kprobes: breakpoints that the kernel itself has put into its code, and knows.

use crate::target::Kernel;
use kimage::running::{ListError, RunningError};
use std::ops::Range;

/// Lists in `kprobe_table` (`KPROBE_HASH_BITS`, kernel/kprobes.c), and limit on the entries of all.
const LISTS: u64 = 64;
const PROBES_MAX: usize = 1 << 16;
/// Flags of a probe (include/linux/kprobes.h): it is disabled; it is a jump instead of a breakpoint.
const DISABLED: u64 = 2;
const OPTIMIZED: u64 = 4;
/// Sizes of breakpoint and jump.
const BREAKPOINT_SIZE: u64 = 1;
const JUMP_SIZE: u64 = 5;

/// Reads the kernel's table: virtual addresses that each probe may have changed. A kernel without one
/// has none.
pub(super) fn kprobes(kernel: &Kernel<'_>) -> Result<Vec<Range<u64>>, RunningError> {
    let mut probes = Vec::new();
    let Ok(table) = kernel.symbol("kprobe_table") else {
        return Ok(probes);
    };
    let mut visited = 0;
    for index in 0..LISTS {
        let head = kernel.object(table.wrapping_add(8 * index), "hlist_head")?;
        let mut next = head.follow("first")?;
        while let Some(node) = next {
            visited += 1;
            if visited > PROBES_MAX {
                return Err(ListError::Endless(head.address()).into());
            }
            let probe = node.container("kprobe", "hlist")?;
            let flags = probe.number("flags")?;
            let size = match flags & OPTIMIZED {
                0 => BREAKPOINT_SIZE,
                _ => JUMP_SIZE,
            };
            if flags & DISABLED == 0 {
                let start = probe.number("addr")?;
                probes.push(start..start.saturating_add(size));
            }
            next = node.follow("next")?;
        }
    }
    Ok(probes)
}
