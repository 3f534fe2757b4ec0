//! Writing a core file, by delegated calls.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use super::areas::{Area, Rights};
use super::core_file::{CoreFile, LastMoment, Stored, file_name};
use super::errno::Errno;
use super::space::Place;
use super::{PAGE, Process, Thread};
use crate::calls::number;
use crate::info;
use crate::memory::{has_room, reserve_in};

/// Bytes through which the beginning of the file goes.
const BUFFER_SIZE: u64 = 64 << 10;
/// Bytes of the kernel's that a thread's last moment takes.
const MOMENT_BYTES: u64 = 16 << 10;

impl Process {
    /// Notes what a thread was that ends while a core file is to be written.
    pub fn note_last_moment(&self, thread: &Thread) {
        let dumper = self.dumper.load(Ordering::Acquire);
        let has_room = has_room(MOMENT_BYTES).is_ok();
        if dumper != 0 && dumper != thread.id && has_room {
            self.last_moments.lock().push(last_moment(thread));
        }
    }
}

fn last_moment(thread: &Thread) -> LastMoment {
    LastMoment {
        id: thread.id,
        registers: thread.context.registers,
        bases: (thread.context.fs_base, thread.context.gs_base),
        extended: thread.extended.bytes().to_vec(),
    }
}

/// Ends a program by a signal that leaves a core file. All other threads of the program are gone,
/// and this one's extended registers are saved.
pub(crate) fn dump(thread: &mut Thread, signal: u32) {
    match write(thread, signal) {
        Ok(Some(name)) => {
            let name = alloc::string::String::from_utf8_lossy(&name).into_owned();
            info!("process {}: core file '{name}'", thread.id);
        }
        Ok(None) => {}
        Err(Errno(errno)) => info!("process {}: no core file, error {errno}", thread.id),
    }
    thread.tell_end(signal.into());
}

/// The name of the file; none if none is wanted.
fn write(thread: &mut Thread, signal: u32) -> Result<Option<Vec<u8>>, Errno> {
    let areas = areas(thread)?;
    let buffer = thread.with_space(|space, release| {
        space.map(
            Place::Near(0),
            BUFFER_SIZE,
            Rights::READ | Rights::WRITE,
            release,
        )
    })?;
    let limit = limit(thread, buffer)?;
    if limit == 0 {
        return Ok(None);
    }
    let name = name(thread, buffer)?;
    let file = create(thread, buffer, &name)?;
    let threads: Vec<LastMoment> = core::iter::once(last_moment(thread))
        .chain(thread.process.last_moments.lock().drain(..))
        .collect();
    let words = thread.process.words.lock().clone();
    let (head, stored) = CoreFile {
        signal,
        pid: thread.process.pages().pid(),
        name: &words.name,
        auxiliary: &words.auxiliary,
        threads: &threads,
        areas: &areas,
    }
    .lay_out();
    let mut file = Output { file, limit };
    file.write_head(thread, buffer, &head)?;
    for one in &stored {
        file.write_area(thread, one)?;
    }
    file.close(thread, &stored)?;
    Ok(Some(name))
}

/// The program's memory, if the kernel has room for all that is to be said of it.
fn areas(thread: &Thread) -> Result<Vec<Area>, Errno> {
    /// Bytes of an area in this list, in that of what is stored, and of its header in the file; the
    /// latter grow by copies.
    const BYTES: usize = 4 * (2 * size_of::<Area>() + 64);
    let space = thread.process.space();
    let count = space.areas().count();
    let threads = thread.process.last_moments.lock().len() as u64 + 1;
    has_room((count * BYTES) as u64 + 2 * threads * MOMENT_BYTES)?;
    let mut areas = Vec::new();
    reserve_in(&mut areas, count)?;
    areas.extend(space.areas().all());
    Ok(areas)
}

/// How large a core file may be (RLIMIT_CORE).
fn limit(thread: &mut Thread, buffer: u64) -> Result<u64, Errno> {
    const CORE: u64 = 4;
    thread.call(number::GETRLIMIT, [CORE, buffer, 0, 0, 0, 0])?;
    let mut bytes = [0; 8];
    thread.process.space().read(buffer, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn open(
    thread: &mut Thread,
    buffer: u64,
    name: &[u8],
    (flags, mode): (u64, u64),
) -> Result<u64, Errno> {
    const HERE: u64 = -100_i64 as u64;
    const CLOSE_ON_EXEC: u64 = 0o2_000_000;
    let path = [name, &[0]].concat();
    thread.process.space().write(buffer, &path)?;
    thread.call(
        number::OPENAT,
        [HERE, buffer, flags | CLOSE_ON_EXEC, mode, 0, 0],
    )
}

fn name(thread: &mut Thread, buffer: u64) -> Result<Vec<u8>, Errno> {
    /// Longest that Linux has.
    const PATTERN_MAX: u64 = 128;
    let pattern = open(thread, buffer, b"/proc/sys/kernel/core_pattern", (0, 0));
    let pattern = pattern.and_then(|file| {
        let read = thread.call(number::PREAD64, [file, buffer, PATTERN_MAX, 0, 0, 0]);
        thread.call(number::CLOSE, [file, 0, 0, 0, 0, 0])?;
        let mut bytes = alloc::vec![0; read?.min(PATTERN_MAX) as usize];
        thread.process.space().read(buffer, &mut bytes)?;
        Ok(bytes)
    });
    let program = thread.process.words.lock().name.clone();
    let pid = thread.process.pages().pid();
    Ok(file_name(&pattern.unwrap_or_default(), pid, &program))
}

fn create(thread: &mut Thread, buffer: u64, name: &[u8]) -> Result<u64, Errno> {
    /// `O_WRONLY`, `O_CREAT`, `O_TRUNC`, `O_NOFOLLOW`: no link leads it elsewhere.
    const FLAGS: u64 = 0o1 | 0o100 | 0o1000 | 0o400_000;
    open(thread, buffer, name, (FLAGS, 0o600))
}

struct Output {
    file: u64,
    /// Bytes that it may have.
    limit: u64,
}

impl Output {
    /// Writes what lies in the program's memory, as far as the file may be large.
    fn write(
        &self,
        thread: &mut Thread,
        address: u64,
        size: u64,
        offset: u64,
    ) -> Result<(), Errno> {
        let size = size.min(self.limit.saturating_sub(offset));
        let mut done = 0;
        while done < size {
            let arguments = [self.file, address + done, size - done, offset + done, 0, 0];
            match thread.call(number::PWRITE64, arguments)? {
                0 => return Err(Errno::EIO),
                written => done += written.min(size - done),
            }
        }
        Ok(())
    }

    fn write_head(&self, thread: &mut Thread, buffer: u64, head: &[u8]) -> Result<(), Errno> {
        for (part, offset) in head
            .chunks(BUFFER_SIZE as usize)
            .zip((0..).step_by(BUFFER_SIZE as usize))
        {
            thread.process.space().write(buffer, part)?;
            self.write(thread, buffer, part.len() as u64, offset)?;
        }
        Ok(())
    }

    /// What the program has never touched stays a hole.
    fn write_area(&self, thread: &mut Thread, stored: &Stored) -> Result<(), Errno> {
        let Area { start, end, .. } = stored.area;
        let mut next = start;
        loop {
            let run = thread.process.space().present(next, end);
            let Some((from, to)) = run else {
                return Ok(());
            };
            self.write(thread, from, to - from, stored.offset + (from - start))?;
            next = to;
        }
    }

    fn close(&mut self, thread: &mut Thread, stored: &[Stored]) -> Result<(), Errno> {
        let end = stored
            .last()
            .map_or(PAGE, |last| last.offset + (last.area.end - last.area.start));
        thread.call(
            number::FTRUNCATE,
            [self.file, end.min(self.limit), 0, 0, 0, 0],
        )?;
        thread
            .call(number::CLOSE, [self.file, 0, 0, 0, 0, 0])
            .map(drop)
    }
}
