//! Forks while the base, in calls of other threads, faults on the program's memory: page after
//! page, by threads on other cores, which unmap it again, and by one on the same core.

use std::fs::File;
use std::io::Read;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::lwk::threads::priorities::stay_on_first_core;
use crate::lwk::{Named, ProbeError, in_a_child};

const FORKS: usize = 40;
const READERS: usize = 4;
const SIZE: usize = 1 << 20;

pub(crate) fn probe() -> Result<(), ProbeError> {
    fork_beside(READERS)?;
    if !stay_on_first_core() {
        return Err(ProbeError::Wrong("it cannot stay on one core".into()));
    }
    fork_beside(1)?;
    println!("{FORKS} copies while other threads read into fresh memory");
    Ok(())
}

fn fork_beside(readers: usize) -> Result<(), ProbeError> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let begin = || scope.spawn(|| read_until(&is_over));
        let readers: Vec<_> = std::iter::repeat_with(begin).take(readers).collect();
        let forked = (0..FORKS).try_for_each(|_| in_a_child(|| ()).map(drop));
        is_over.store(true, Ordering::Relaxed);
        let joined = |reader: thread::ScopedJoinHandle<'_, _>| {
            reader.join().unwrap_or(Err(ProbeError::Unknown))
        };
        readers.into_iter().map(joined).fold(forked, Result::and)
    })
}

fn read_until(is_over: &AtomicBool) -> Result<(), ProbeError> {
    let zeros = File::open("/dev/zero");
    let mut zeros = zeros.map_err(|error| ProbeError::Wrong(format!("/dev/zero: {error}")))?;
    while !is_over.load(Ordering::Relaxed) {
        read_into_fresh_memory(&mut zeros)?;
    }
    Ok(())
}

fn read_into_fresh_memory(from: &mut File) -> Result<(), ProbeError> {
    let size = NonZeroUsize::new(SIZE).ok_or(ProbeError::Unknown)?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { mmap_anonymous(None, size, protection, MapFlags::MAP_PRIVATE) };
    let start = start.named("fresh memory")?;
    // SAFETY: it is that large, readable and writable, zero at first, and owned here.
    let buffer = unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>().as_ptr(), SIZE) };
    let read = from.read_exact(buffer);
    // SAFETY: the buffer is not used any more.
    unsafe { munmap(start, SIZE) }.named("munmap")?;
    read.map_err(|error| ProbeError::Wrong(format!("reading zeros: {error}")))
}
