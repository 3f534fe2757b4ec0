//! Equal pages that the base merges (KSM): each keeps its content when one of them is written.

use std::fs;
use std::os::fd::AsRawFd;

use nix::libc;

use super::mappings::{PAGE, PRIVATE, advise, read, unmap, write};
use super::shared_files::memfd;
use crate::lwk::processes::signals::wait_until;
use crate::lwk::{ProbeError, call};

const BASE: u64 = 0x38_0000_0000;
const PAGES: u64 = 64;
const CONTENT: u64 = 0x5e5e;
/// Number of mappings that share a merged page with others, in the whole base.
const MERGED: &str = "/sys/kernel/mm/ksm/pages_sharing";

/// KSM must run.
pub(crate) fn probe() -> Result<(), ProbeError> {
    let file = memfd()?;
    println!("sized: {}", file.set_len(PAGES * PAGE).is_ok());
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = PRIVATE | libc::MAP_FIXED_NOREPLACE as u64;
    let fd = file.as_raw_fd() as u64;
    let arguments = [BASE, PAGES * PAGE, protection, flags, fd, 0];
    // SAFETY: it replaces nothing.
    let mapped = unsafe { call(libc::SYS_mmap as u64, arguments) };
    println!("mapped: {mapped:x?}");
    (0..PAGES).for_each(|page| write(BASE, page, CONTENT));
    println!("mergeable: {:?}", advise(BASE, PAGES, libc::MADV_MERGEABLE));
    // One page less than are merged shares it with another.
    wait_until("merged pages", || merged() >= PAGES - 1)?;
    for page in (0..PAGES).step_by(3) {
        write(BASE, page, page);
    }
    let is_right = |page: &u64| match page % 3 {
        0 => read(BASE, *page) == *page,
        _ => read(BASE, *page) == CONTENT,
    };
    println!("written: {}", (0..PAGES).filter(is_right).count());
    println!("not needed: {:?}", advise(BASE, PAGES, libc::MADV_DONTNEED));
    let is_fresh = |page: &u64| read(BASE, *page) == 0;
    println!("the file's: {}", (0..PAGES).filter(is_fresh).count());
    println!("{:?}", unmap(BASE, PAGES));
    Ok(())
}

fn merged() -> u64 {
    let text = fs::read_to_string(MERGED).unwrap_or_default();
    text.trim().parse().unwrap_or_default()
}
