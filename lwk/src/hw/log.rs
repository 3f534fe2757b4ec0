//! The kernel's log, in memory that the base reads: in the format of Linux' printk ring
//! (kernel/printk/printk_ringbuffer.c), so that the same code reads it.
//!
//! A record has a descriptor and an info, indexed by its sequence number modulo their count, and a
//! data block that begins with that number. The descriptor's top two bits are the record's state.
//! Writers take a lock (printk's do not), so records are written one after the other: mark old
//! records that are overwritten as reusable; mark the new one as reserved; write text and info;
//! mark it as final. A reader that finds the same state before and after copying a record has a
//! consistent copy.
//!
//! `kimage` (`log/lwk.rs` there) knows the symbols and layouts of these statics.

#![allow(unsafe_code, reason = "the symbols read from outside have fixed names")]

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use crate::hw::{clock, cores};

const COUNT_BITS: u32 = 10;
const SIZE_BITS: u32 = 16;
const COUNT: u64 = 1 << COUNT_BITS;
const SIZE: u64 = 1 << SIZE_BITS;
/// Bytes of the sequence number in front of each text.
const BLOCK_HEAD: u64 = 8;
/// Maximum length of a record's text; longer texts are truncated.
const TEXT_MAX: usize = 1000;

/// `enum desc_state`, in a descriptor's top two bits.
const STATE_SHIFT: u32 = 62;
const RESERVED: u64 = 0 << STATE_SHIFT;
const FINAL: u64 = 2 << STATE_SHIFT;
const REUSABLE: u64 = 3 << STATE_SHIFT;

/// Level of a record, as in syslog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Level {
    /// The kernel panics.
    Emergency = 0,
    /// Something failed.
    Error = 3,
    /// Something is wrong, but the kernel goes on.
    Warning = 4,
    /// Informational.
    Info = 6,
}

#[repr(C)]
struct Descriptor {
    state: AtomicU64,
    begin: AtomicU64,
    next: AtomicU64,
}

#[repr(C)]
struct Info {
    sequence: AtomicU64,
    time_ns: AtomicU64,
    /// Length of the text in bits 0 to 15, facility 16 to 23, level 24 to 26, core 32 to 63.
    rest: AtomicU64,
}

#[repr(C)]
struct Ring {
    count_bits: u32,
    size_bits: u32,
    descriptors: &'static [Descriptor; COUNT as usize],
    infos: &'static [Info; COUNT as usize],
    data: &'static [AtomicU8; SIZE as usize],
    head: AtomicU64,
    tail: AtomicU64,
}

static DESCRIPTORS: [Descriptor; COUNT as usize] = [const {
    Descriptor {
        state: AtomicU64::new(RESERVED),
        begin: AtomicU64::new(0),
        next: AtomicU64::new(0),
    }
}; COUNT as usize];
static INFOS: [Info; COUNT as usize] = [const {
    Info {
        sequence: AtomicU64::new(0),
        time_ns: AtomicU64::new(0),
        rest: AtomicU64::new(0),
    }
}; COUNT as usize];
static DATA: [AtomicU8; SIZE as usize] = [const { AtomicU8::new(0) }; SIZE as usize];

#[cfg_attr(target_os = "none", unsafe(export_name = "printk_rb_static"))]
static RING: Ring = Ring {
    count_bits: COUNT_BITS,
    size_bits: SIZE_BITS,
    descriptors: &DESCRIPTORS,
    infos: &INFOS,
    data: &DATA,
    head: AtomicU64::new(0),
    tail: AtomicU64::new(0),
};
#[cfg_attr(target_os = "none", unsafe(export_name = "prb"))]
#[used]
static RING_IN_USE: &Ring = &RING;

const BANNER_TEXT: &str = concat!("Insula LWK version ", env!("CARGO_PKG_VERSION"), "-lwk\0");
/// Banner by which the base finds this kernel in memory. The first record repeats it.
#[cfg_attr(target_os = "none", unsafe(export_name = "lwk_banner"))]
#[used]
static BANNER: [u8; BANNER_TEXT.len()] = *BANNER_TEXT.as_bytes().first_chunk().unwrap();

/// Core that has panicked, or -1.
#[cfg_attr(target_os = "none", unsafe(export_name = "panic_cpu"))]
static PANIC_CORE: AtomicI32 = AtomicI32::new(-1);

/// Number of health probes (reschedule IPIs from the base) that the first core has handled.
#[cfg_attr(target_os = "none", unsafe(export_name = "lwk_resched_count"))]
static RESCHED_COUNT: AtomicU32 = AtomicU32::new(0);
/// Address of that count, for readers that expect a per-CPU offset.
#[cfg_attr(target_os = "none", unsafe(export_name = "lwk_resched_count_at"))]
#[used]
static RESCHED_COUNT_AT: &AtomicU32 = &RESCHED_COUNT;

/// 1 while the first core executes a program: then the base sends no probe, so that the program is
/// not interrupted.
#[cfg_attr(target_os = "none", unsafe(export_name = "lwk_in_program"))]
static IN_PROGRAM: AtomicU32 = AtomicU32::new(0);

/// 0 while the kernel runs, 1 when it is powered off.
#[cfg_attr(target_os = "none", unsafe(export_name = "system_state"))]
static SYSTEM_STATE: AtomicU32 = AtomicU32::new(0);

/// State of the writer, protected by the lock.
struct Writer {
    /// Sequence number of the next record, and of the oldest one.
    next: u64,
    oldest: u64,
    /// Position in the data ring, ever increasing.
    position: u64,
}

static WRITER: spin::Mutex<Writer> = spin::Mutex::new(Writer {
    next: 0,
    oldest: 0,
    position: 0,
});

/// Text buffer of fixed size, on the stack.
struct TextBuffer {
    bytes: [u8; TEXT_MAX],
    size: usize,
}

impl Write for TextBuffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.size..];
        let size = text.len().min(room.len());
        room[..size].copy_from_slice(&text.as_bytes()[..size]);
        self.size += size;
        Ok(())
    }
}

/// Appends a record.
pub fn append(level: Level, arguments: fmt::Arguments<'_>) {
    let mut text = TextBuffer {
        bytes: [0; TEXT_MAX],
        size: 0,
    };
    // It never fails: a text that is too long is truncated.
    let _ = text.write_fmt(arguments);
    let record = Record {
        level,
        core: cores::number(),
        time_ns: clock::now_ns(),
        text: &text.bytes[..text.size],
    };
    WRITER.lock().write(&RING, &record);
}

/// Frees the lock on a panic: its owner may be a core that has been stopped.
pub(crate) fn force_unlock(core: u32) {
    PANIC_CORE.store(core as i32, Ordering::SeqCst);
    // SAFETY: all other cores are stopped, or about to be; a record that one of them was writing is
    // lost.
    unsafe { WRITER.force_unlock() }
}

/// Counts a health probe.
pub(crate) fn count_resched() {
    RESCHED_COUNT.fetch_add(1, Ordering::Relaxed);
}

/// Sets whether the first core, which calls, executes a program.
pub(crate) fn set_in_program(is_in_program: bool) {
    IN_PROGRAM.store(is_in_program.into(), Ordering::Relaxed);
}

/// Marks the kernel as powered off.
pub(crate) fn mark_off() {
    SYSTEM_STATE.store(1, Ordering::SeqCst);
}

/// Returns this kernel's name and version.
#[must_use]
pub fn banner() -> &'static str {
    BANNER_TEXT.trim_end_matches('\0')
}

struct Record<'a> {
    level: Level,
    core: u32,
    time_ns: u64,
    text: &'a [u8],
}

impl Writer {
    fn write(&mut self, ring: &Ring, record: &Record) {
        let id = self.next;
        let size = BLOCK_HEAD + (record.text.len() as u64).next_multiple_of(BLOCK_HEAD);
        let begin = self.position;
        // A block that does not fit before the ring's end is put at its beginning.
        let wraps = begin % SIZE + size > SIZE;
        let start = if wraps { 0 } else { begin % SIZE };
        let next = if wraps {
            begin.next_multiple_of(SIZE) + size
        } else {
            begin + size
        };
        self.make_room(ring, id, next);

        let slot = (id % COUNT) as usize;
        let (descriptor, info) = (&ring.descriptors[slot], &ring.infos[slot]);
        descriptor.state.store(RESERVED | id, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        descriptor.begin.store(begin, Ordering::Relaxed);
        descriptor.next.store(next, Ordering::Relaxed);
        let bytes = id
            .to_le_bytes()
            .into_iter()
            .chain(record.text.iter().copied());
        for (byte, at) in bytes.zip(&ring.data[start as usize..]) {
            at.store(byte, Ordering::Relaxed);
        }
        info.sequence.store(id, Ordering::Relaxed);
        info.time_ns.store(record.time_ns, Ordering::Relaxed);
        info.rest.store(record.rest(), Ordering::Relaxed);
        descriptor.state.store(FINAL | id, Ordering::Release);
        ring.head.store(id, Ordering::Release);
        self.next = id + 1;
        self.position = next;
    }

    /// Marks the records as reusable whose descriptor or text is overwritten by record `id`, which
    /// ends at position `next`.
    fn make_room(&mut self, ring: &Ring, id: u64, next: u64) {
        while self.oldest < id {
            let descriptor = &ring.descriptors[(self.oldest % COUNT) as usize];
            let overwritten = descriptor.begin.load(Ordering::Relaxed) + SIZE < next;
            if !overwritten && id - self.oldest < COUNT {
                break;
            }
            descriptor
                .state
                .store(REUSABLE | self.oldest, Ordering::Relaxed);
            self.oldest += 1;
            ring.tail.store(self.oldest, Ordering::Relaxed);
        }
    }
}

impl Record<'_> {
    fn rest(&self) -> u64 {
        /// Bit of `caller_id` that marks a core instead of a thread.
        const IS_CORE: u64 = 1 << 31;
        self.text.len() as u64 | (self.level as u64) << 24 | (u64::from(self.core) | IS_CORE) << 32
    }
}

/// Logs an informational message.
#[macro_export]
macro_rules! info {
    ($($arguments:tt)*) => {
        $crate::hw::log::append($crate::hw::log::Level::Info, format_args!($($arguments)*))
    };
}

/// Logs a warning.
#[macro_export]
macro_rules! warning {
    ($($arguments:tt)*) => {
        $crate::hw::log::append($crate::hw::log::Level::Warning, format_args!($($arguments)*))
    };
}
