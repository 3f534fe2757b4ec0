//! Clocks without a call: code and clocks in every program's memory, which the C library finds by the
//! auxiliary vector and calls by their names, as on Linux.
//!
//! Two pages: first the base's clocks (the first page of the delegation area, so what the base writes
//! there is seen at once), behind it an ELF file (`vdso.s`). Both are the kernel's: all programs have the
//! same, and none can write them.
//!
//! Source: vdso(7).

#![allow(unsafe_code, reason = "the object is assembly")]

use alloc::sync::Arc;
use core::arch::global_asm;
use core::mem::offset_of;

use insula_abi::lwk::{Clock, Delegation};
use insula_bare::core_area::tells_core;
use insula_bare::memory;
use spin::Once;

use super::areas::Rights;
use super::errno::Errno;
use super::shared::Shared;
use super::space::Space;
use super::{PAGE, space};
use crate::delegation::Area;
use crate::memory::take_block;

global_asm!(
    include_str!("vdso.s"),
    CLOCK = const offset_of!(Delegation, clock),
    SEQUENCE = const offset_of!(Clock, sequence),
    TSC = const offset_of!(Clock, tsc),
    REALTIME = const offset_of!(Clock, realtime_ns),
    MONOTONIC = const offset_of!(Clock, monotonic_ns),
    MULT = const offset_of!(Clock, mult),
    FRACTION = const offset_of!(Clock, fraction),
);

/// The object, and where in it lies whether the processor tells which core it is.
fn object() -> (&'static [u8], usize) {
    unsafe extern "C" {
        static insula_vdso_begin: u8;
        static insula_vdso_end: u8;
        static insula_vdso_knows_core: u8;
    }
    let begin = &raw const insula_vdso_begin;
    let offset = |at: *const u8| at.addr() - begin.addr();
    let (end, knows_core) = (
        &raw const insula_vdso_end,
        &raw const insula_vdso_knows_core,
    );
    // SAFETY: the assembly lays out these bytes, between the two labels and never changed.
    let bytes = unsafe { core::slice::from_raw_parts(begin, offset(end)) };
    (bytes, offset(knows_core))
}

static PAGES: Once<Option<Arc<Shared>>> = Once::new();

/// Both pages; `None` if there was no memory for them.
fn pages(area: Area) -> Option<Arc<Shared>> {
    let make = || {
        let frame = take_block(0)?;
        let (bytes, knows_core) = object();
        // SAFETY: the frame has just been taken, and the object is no larger.
        unsafe {
            memory::clear(frame, PAGE);
            memory::write(frame, bytes);
            let told = memory::PhysAddr(frame.0 + knows_core as u64);
            memory::write(told, &u64::from(tells_core()).to_le_bytes());
        }
        Some(Shared::of_kernel([area.header_frame(), frame]))
    };
    PAGES.call_once(make).clone()
}

/// Gives a program both pages: where the object is. `None` if it has to do without.
pub(super) fn map(space: &mut Space, area: Area, release: &mut space::Release) -> Option<u64> {
    let start = space.map_kernels(pages(area)?, 2 * PAGE, Rights::READ, release);
    let code = start.ok()? + PAGE;
    let rights = Rights::READ | Rights::EXECUTE;
    let done: Result<(), Errno> = space.protect(code, code + PAGE, rights, release);
    done.ok().map(|()| code)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn word(bytes: &[u8], at: usize) -> usize {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
    }

    /// As a loader finds them: by the dynamic section, the hash table's chain, and the names.
    fn symbols(bytes: &[u8]) -> Vec<(&str, usize)> {
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        let second = word(bytes, 32) + 56;
        assert_eq!(half(second), 2, "PT_DYNAMIC");
        let dynamic = word(bytes, second + 16);
        let entries = (dynamic..).step_by(16);
        let entries = entries.map(|at| (word(bytes, at), word(bytes, at + 8)));
        let entries: Vec<_> = entries.take_while(|&(kind, _)| kind != 0).collect();
        let entry = |wanted| entries.iter().find(|(kind, _)| *kind == wanted).unwrap().1;
        let (hash, strings, table) = (entry(4), entry(5), entry(6));
        let text = |at: usize| {
            let rest = &bytes[strings + at..];
            let end = rest.iter().position(|&byte| byte == 0).unwrap();
            core::str::from_utf8(&rest[..end]).unwrap()
        };
        assert_eq!(text(entry(14)), "linux-vdso.so.1");
        // The name lies behind the version's definition, the second.
        assert_eq!(text(half(entry(0x6fff_fffc) + 28 + 20)), "LINUX_2.6");
        assert_eq!(
            bytes[entry(0x6fff_fff0) + 2..][..8],
            [2, 0, 2, 0, 2, 0, 2, 0]
        );
        let mut found = Vec::new();
        let mut index = half(hash + 8);
        while index != 0 {
            let at = table + 24 * index;
            found.push((text(half(at)), word(bytes, at + 8)));
            index = half(hash + 12 + 4 * index);
        }
        found
    }

    #[test]
    fn a_loader_finds_all_in_a_page() {
        let (bytes, knows_core) = object();
        assert!(bytes.len() <= PAGE as usize && knows_core < bytes.len());
        assert_eq!(bytes.as_ptr().addr() % PAGE as usize, 0);
        assert_eq!(&bytes[..4], b"\x7fELF");
        let names: Vec<_> = symbols(bytes).iter().map(|(name, _)| *name).collect();
        let all = ["clock_gettime", "gettimeofday", "time", "getcpu"];
        assert_eq!(names, all.map(|name| std::format!("__vdso_{name}")));
        assert!(symbols(bytes).iter().all(|&(_, at)| at < bytes.len()));
    }
}
