//! Rings of events that the base's kernel writes and this program reads in its memory: those of BPF
//! and of perf, filled by a BPF program.

use std::ffi::c_int;
use std::fs;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};

use crate::lwk::{Named, ProbeError, call};

const PAGE: usize = 4096;
/// Value that the BPF program outputs.
const VALUE: u64 = 0x0123_4567_89ab_cdef;
/// Commands of bpf(2).
const MAP_CREATE: u64 = 0;
const MAP_UPDATE: u64 = 2;
const PROG_LOAD: u64 = 5;
const PROG_TEST_RUN: u64 = 10;
/// Types of maps and programs.
const RINGBUF: u32 = 27;
const PERF_EVENT_ARRAY: u32 = 4;
const SOCKET_FILTER: u32 = 1;
/// Helpers of BPF programs.
const PERF_EVENT_OUTPUT: i32 = 25;
const RINGBUF_OUTPUT: i32 = 130;

pub(crate) fn probe() -> Result<(), ProbeError> {
    ring_buffer()?;
    perf_buffer()?;
    counters()
}

/// An attribute of bpf(2), as words: unused ones are zero.
fn bpf(command: u64, attribute: &[u32; 32]) -> Result<u64, ProbeError> {
    let at = attribute.as_ptr().expose_provenance() as u64;
    let size = size_of_val(attribute) as u64;
    // SAFETY: what the attribute points to outlives the call.
    unsafe { call(libc::SYS_bpf as u64, [command, at, size, 0, 0, 0]) }.named("bpf")
}

fn descriptor(fd: u64) -> OwnedFd {
    // SAFETY: the kernel has just made it, for this caller alone.
    unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
}

fn new_map(kind: u32, key_size: u32, entries: u32) -> Result<OwnedFd, ProbeError> {
    let mut attribute = [0; 32];
    attribute[..4].copy_from_slice(&[kind, key_size, key_size, entries]);
    bpf(MAP_CREATE, &attribute).map(descriptor)
}

/// Sets words of an attribute to an address.
fn point(words: &mut [u32], address: usize) {
    words[0] = address as u32;
    words[1] = (address as u64 >> 32) as u32;
}

/// An instruction of BPF: operation, target register, source register, offset, constant.
fn instruction(operation: u8, target: u8, source: u8, offset: i16, constant: i32) -> u64 {
    let registers = target | source << 4;
    u64::from(operation)
        | u64::from(registers) << 8
        | u64::from(offset.cast_unsigned()) << 16
        | u64::from(constant.cast_unsigned()) << 32
}

/// Loads a value of 64 bits. A source of 1 makes it the map of that descriptor.
fn load(target: u8, source: u8, value: u64) -> [u64; 2] {
    let (low, high) = (value as i32, (value >> 32) as i32);
    [
        instruction(0x18, target, source, 0, low),
        instruction(0, 0, 0, 0, high),
    ]
}

/// Loads a program that stores [`VALUE`] on its stack, makes `calls`, and returns their result.
fn program(calls: &[u64]) -> Result<OwnedFd, ProbeError> {
    let mut code = vec![instruction(0xbf, 6, 1, 0, 0)];
    code.extend(load(1, 0, VALUE));
    code.push(instruction(0x7b, 10, 1, -8, 0));
    code.extend(calls);
    code.push(instruction(0x95, 0, 0, 0, 0));
    let mut attribute = [0; 32];
    attribute[0] = SOCKET_FILTER;
    attribute[1] = code.len() as u32;
    point(&mut attribute[2..], code.as_ptr().expose_provenance());
    point(&mut attribute[4..], c"GPL".as_ptr().expose_provenance());
    bpf(PROG_LOAD, &attribute).map(descriptor)
}

/// Runs a program once. Returns its result.
fn run(program: &OwnedFd) -> Result<i32, ProbeError> {
    let packet = [0_u8; 64];
    let mut attribute = [0; 32];
    attribute[0] = program.as_raw_fd().cast_unsigned();
    attribute[2] = packet.len() as u32;
    point(&mut attribute[4..], packet.as_ptr().expose_provenance());
    bpf(PROG_TEST_RUN, &attribute)?;
    // SAFETY: the kernel has written it.
    let result = unsafe { (&raw const attribute[1]).read_volatile() };
    Ok(result.cast_signed())
}

fn map_pages(
    file: &OwnedFd,
    (offset, pages): (usize, usize),
    protection: ProtFlags,
) -> Result<NonNull<u8>, ProbeError> {
    let size = NonZeroUsize::new(pages * PAGE).ok_or(ProbeError::Unknown)?;
    let offset = offset as libc::off_t;
    // SAFETY: a new mapping at an address of the kernel's choice, never unmapped.
    let mapped = unsafe { mmap(None, size, protection, MapFlags::MAP_SHARED, file, offset) };
    mapped.named("mmap of a ring").map(NonNull::cast)
}

/// A word of a ring, `at` bytes from its start.
fn word(ring: NonNull<u8>, at: usize) -> &'static AtomicU64 {
    // SAFETY: within the mapping, which is never unmapped, and aligned.
    unsafe { &*ring.as_ptr().wrapping_add(at).cast::<AtomicU64>() }
}

fn is_readable(file: &OwnedFd) -> Result<bool, ProbeError> {
    use std::os::fd::AsFd;
    let mut files = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
    Ok(poll(&mut files, PollTimeout::ZERO).named("poll")? > 0)
}

/// The kernel produces until the ring is full, this program consumes, and the kernel goes on.
fn ring_buffer() -> Result<(), ProbeError> {
    let map = new_map(RINGBUF, 0, PAGE as u32)?;
    let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let consumed = word(map_pages(&map, (0, 1), both)?, 0);
    let ring = map_pages(&map, (PAGE, 3), ProtFlags::PROT_READ)?;
    let denied = map_pages(&map, (PAGE, 1), both);
    println!("the producer's page for writing: {denied:?}");
    let mut calls = load(1, 1, map.as_raw_fd() as u64).to_vec();
    calls.extend([
        instruction(0xbf, 2, 10, 0, 0),
        instruction(0x07, 2, 0, 0, -8),
        instruction(0xb7, 3, 0, 0, 8),
        instruction(0xb7, 4, 0, 0, 0),
        instruction(0x85, 0, 0, 0, RINGBUF_OUTPUT),
    ]);
    let output = program(&calls)?;
    for round in 0..3 {
        let mut results = (0..2 * PAGE / 16).map(|_| run(&output));
        let written = results
            .by_ref()
            .take_while(|result| matches!(result, Ok(0)));
        let (written, readable) = (written.count(), is_readable(&map)?);
        let produced = word(ring, 0).load(Ordering::Acquire);
        let records = (consumed.load(Ordering::Relaxed)..produced).step_by(16);
        let record = |at: u64| PAGE + at as usize % PAGE;
        let (mut right, mut others) = (0, 0);
        for at in records {
            let header = word(ring, record(at)).load(Ordering::Acquire);
            let value = word(ring, record(at) + 8).load(Ordering::Relaxed);
            match (header as u32, value) {
                (8, VALUE) => right += 1,
                _ => others += 1,
            }
        }
        println!(
            "round {round}: {written} written, {produced}, {right} right, {others} wrong, {readable}"
        );
        consumed.store(produced, Ordering::Release);
        println!("consumed: {}", is_readable(&map)?);
    }
    Ok(())
}

/// The base's processors.
fn processors() -> Result<Vec<u32>, ProbeError> {
    let path = "/sys/devices/system/cpu/online";
    let text = fs::read_to_string(path).map_err(|error| ProbeError::Wrong(error.to_string()))?;
    let parts = text.trim_end().split(',').map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    let ranges: Option<Vec<_>> = parts.collect();
    Ok(ranges
        .ok_or(ProbeError::Unknown)?
        .into_iter()
        .flatten()
        .collect())
}

/// Opens a software event of a process, or of all on a processor.
pub(crate) fn open_event(
    config: u64,
    process: c_int,
    processor: c_int,
) -> Result<OwnedFd, ProbeError> {
    const SOFTWARE: u32 = 1;
    const SIZE: u32 = 64;
    /// `PERF_SAMPLE_RAW`.
    const RAW: u64 = 1 << 10;
    let attribute = [
        u64::from(SOFTWARE) | u64::from(SIZE) << 32,
        config,
        1,
        RAW,
        0,
        0,
        1,
        0,
    ];
    let at = attribute.as_ptr().expose_provenance() as u64;
    let arguments = [at, process as u64, processor as u64, u64::MAX, 0, 0];
    // SAFETY: it reads the attribute, which outlives the call.
    let opened = unsafe { call(libc::SYS_perf_event_open as u64, arguments) };
    opened.named("perf_event_open").map(descriptor)
}

/// A BPF program outputs to the ring of the processor on which the base runs it.
fn perf_buffer() -> Result<(), ProbeError> {
    const BPF_OUTPUT: u64 = 10;
    /// Offset of the ring's end in its first page.
    const HEAD: usize = 1024;
    let processors = processors()?;
    let last = processors.iter().max().map_or(0, |last| *last);
    let array = new_map(PERF_EVENT_ARRAY, 4, last + 1)?;
    let mut rings = Vec::new();
    for processor in processors {
        let event = open_event(BPF_OUTPUT, -1, processor.cast_signed())?;
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let ring = map_pages(&event, (0, 2), both)?;
        let (key, value) = (
            AtomicU32::new(processor),
            AtomicU32::new(event.as_raw_fd().cast_unsigned()),
        );
        let mut attribute = [0; 32];
        attribute[0] = array.as_raw_fd().cast_unsigned();
        point(&mut attribute[2..], key.as_ptr().expose_provenance());
        point(&mut attribute[4..], value.as_ptr().expose_provenance());
        bpf(MAP_UPDATE, &attribute)?;
        rings.push((event, ring));
    }
    let mut calls = vec![instruction(0xbf, 1, 6, 0, 0)];
    calls.extend(load(2, 1, array.as_raw_fd() as u64));
    // On the processor that it runs on.
    calls.extend(load(3, 0, u64::from(u32::MAX)));
    calls.extend([
        instruction(0xbf, 4, 10, 0, 0),
        instruction(0x07, 4, 0, 0, -8),
        instruction(0xb7, 5, 0, 0, 8),
        instruction(0x85, 0, 0, 0, PERF_EVENT_OUTPUT),
    ]);
    let output = program(&calls)?;
    let failed = (0..8)
        .map(|_| run(&output))
        .filter(|result| !matches!(result, Ok(0)));
    println!("perf output failed: {}", failed.count());
    let bytes = rings
        .iter()
        .map(|(_, ring)| word(*ring, HEAD).load(Ordering::Acquire));
    println!("bytes in rings: {}", bytes.sum::<u64>());
    let first = rings
        .iter()
        .find(|(_, ring)| word(*ring, HEAD).load(Ordering::Acquire) > 0);
    if let Some((event, ring)) = first {
        // Header, then the size of the raw data, then these.
        let header = word(*ring, PAGE).load(Ordering::Relaxed);
        let low = word(*ring, PAGE + 8).load(Ordering::Relaxed) >> 32;
        let high = word(*ring, PAGE + 16).load(Ordering::Relaxed) & 0xffff_ffff;
        let value = high << 32 | low;
        println!(
            "{header:x}, right: {}, {}",
            value == VALUE,
            is_readable(event)?
        );
    }
    Ok(())
}

/// Counts what another process does, and what the base's first processor does.
fn counters() -> Result<(), ProbeError> {
    const CONTEXT_SWITCHES: u64 = 3;
    for (process, processor) in [(1, -1), (-1, 0)] {
        let event = open_event(CONTEXT_SWITCHES, process, processor)?;
        let mut count = [0; 8];
        let read = nix::unistd::read(&event, &mut count).named("reading a counter")?;
        println!("counter of {process}, {processor}: {read} bytes");
    }
    println!(
        "nobody: {:?}",
        open_event(CONTEXT_SWITCHES, i32::MAX, -1)
            .err()
            .map(|error| error.to_string())
    );
    Ok(())
}
