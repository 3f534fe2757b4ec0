//! The vDSO: clocks without a system call. The C library finds the object by the auxiliary vector
//! and its functions by name, as on Linux.
//!
//! It has two pages: the base's clocks, which is the first page of the delegation area, and an ELF
//! file (`vdso.s`). All programs share both, and none can write them.
//!
//! Source: vdso(7).

#![allow(unsafe_code, reason = "the object is assembly")]

use alloc::sync::Arc;
use core::arch::global_asm;
use core::mem::offset_of;

use insula_abi::lwk::{Clock, Delegation};
use insula_bare::{memory, program_mode};
use spin::Once;

use crate::base::area::DelegationArea;
use crate::hw::memory::frames::alloc_block;
use crate::model::vma::{PAGE, Protection};
use crate::task::address_space::AddressSpace;
use crate::task::shared_object::SharedObject;

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

/// Returns the object, and the offset of the word that says whether RDTSCP can be used.
fn object() -> (&'static [u8], usize) {
    unsafe extern "C" {
        static insula_vdso_begin: u8;
        static insula_vdso_end: u8;
        static insula_vdso_has_rdtscp: u8;
    }
    let begin = &raw const insula_vdso_begin;
    let offset = |at: *const u8| at.addr() - begin.addr();
    let (end, has_rdtscp) = (
        &raw const insula_vdso_end,
        &raw const insula_vdso_has_rdtscp,
    );
    // SAFETY: the assembly emits these bytes between the two labels; they are constant.
    let bytes = unsafe { core::slice::from_raw_parts(begin, offset(end)) };
    (bytes, offset(has_rdtscp))
}

static PAGES: Once<Option<Arc<SharedObject>>> = Once::new();

/// Returns both pages; `None` without memory for them.
fn pages(area: DelegationArea) -> Option<Arc<SharedObject>> {
    let make = || {
        let frame = alloc_block(0)?;
        let (bytes, has_rdtscp) = object();
        // SAFETY: the frame has just been allocated, and the object is not larger.
        unsafe {
            memory::clear(frame, PAGE);
            memory::write(frame, bytes);
            let flag = memory::PhysAddr(frame.0 + has_rdtscp as u64);
            memory::write(flag, &u64::from(program_mode::has_rdtscp()).to_le_bytes());
        }
        Some(SharedObject::from_kernel_frames([
            area.header_frame(),
            frame,
        ]))
    };
    PAGES.call_once(make).clone()
}

/// Maps both pages. Returns the address of the object; `None` if that fails.
pub(super) fn map(space: &mut AddressSpace, area: DelegationArea) -> Option<u64> {
    // Nothing was there, and there are no pages yet: neither needs an invalidation.
    let start = space.map_kernel_object(pages(area)?, 2 * PAGE, Protection::READ);
    let code = start.ok()? + PAGE;
    let protection = Protection::READ | Protection::EXECUTE;
    let done = space.protect(code, code + PAGE, protection);
    done.ok().map(|()| code)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn word(bytes: &[u8], at: usize) -> usize {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
    }

    /// Finds symbols as a loader does: by the dynamic section, the hash table's chain, and the
    /// names.
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
        // The name follows the second version definition.
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
    fn a_loader_finds_all_symbols_in_a_page() {
        let (bytes, has_rdtscp) = object();
        assert!(bytes.len() <= PAGE as usize && has_rdtscp < bytes.len());
        assert_eq!(bytes.as_ptr().addr() % PAGE as usize, 0);
        assert_eq!(&bytes[..4], b"\x7fELF");
        let names: Vec<_> = symbols(bytes).iter().map(|(name, _)| *name).collect();
        let all = ["clock_gettime", "gettimeofday", "time", "getcpu"];
        assert_eq!(names, all.map(|name| std::format!("__vdso_{name}")));
        assert!(symbols(bytes).iter().all(|&(_, at)| at < bytes.len()));
    }
}
