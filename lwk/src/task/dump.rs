//! Writes core files by delegated calls.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::hw::memory::room::{has_room, reserve_in};
use crate::info;
use crate::model::core_file::{CoreFile, DumpedVma, ThreadDump, file_name};
use crate::model::errno::Errno;
use crate::model::number;
use crate::model::vma::{PAGE, Vma, VmaFlags};
use crate::task::flow::Flow;
use crate::task::process::Process;
use crate::task::thread::Thread;

/// Size of the buffer through which the file's head is written.
const BUFFER_SIZE: u64 = 64 << 10;
/// Kernel memory needed for the dump of a thread.
const DUMP_BYTES: u64 = 16 << 10;

impl Process {
    /// Saves the state of a thread that exits, if a core file will be written.
    pub fn save_thread_dump(&self, thread: &Thread) {
        let dumper = self.dumper.load(Ordering::Acquire);
        let has_room = has_room(DUMP_BYTES).is_ok();
        if dumper != 0 && dumper != thread.id && has_room {
            self.thread_dumps.lock().push(thread_dump(thread));
        }
    }
}

fn thread_dump(thread: &Thread) -> ThreadDump {
    let bases = thread.extended.bases();
    ThreadDump {
        id: thread.id,
        registers: thread.context.registers,
        bases: (bases.fs, bases.gs),
        extended: thread.extended.bytes().to_vec(),
    }
}

/// Writes the core file of a program that a signal terminates, and makes the proxy exit. All other
/// threads have exited, and this one's extended state is saved.
pub(crate) fn dump(thread: Box<Thread>, signal: u32) -> Flow {
    Flow::handler(thread, move |mut thread| async move {
        let written = write(&mut thread, signal).await;
        log_result(&thread, written);
        thread.exit_proxy(signal.into());
        Flow::Exit(thread)
    })
}

fn log_result(thread: &Thread, written: Result<Option<Vec<u8>>, Errno>) {
    match written {
        Ok(Some(name)) => {
            let name = alloc::string::String::from_utf8_lossy(&name).into_owned();
            info!("process {}: core file '{name}'", thread.id);
        }
        Ok(None) => {}
        Err(Errno(errno)) => info!(
            "process {}: writing a core file failed with errno {errno}",
            thread.id
        ),
    }
}

/// Writes the core file. Returns its name; `None` if the limit is 0.
async fn write(thread: &mut Thread, signal: u32) -> Result<Option<Vec<u8>>, Errno> {
    let vmas = vmas(thread)?;
    let buffer = thread.map_buffer(BUFFER_SIZE).await?;
    let limit = limit(thread, buffer).await?;
    if limit == 0 {
        return Ok(None);
    }
    let name = name(thread, buffer).await?;
    let file = create(thread, buffer, &name).await?;
    let threads: Vec<ThreadDump> = core::iter::once(thread_dump(thread))
        .chain(thread.process.thread_dumps.lock().drain(..))
        .collect();
    let program_info = thread.process.program_info.lock().clone();
    let (head, dumped) = CoreFile {
        signal,
        pid: thread.process.pages().pid(),
        name: &program_info.name,
        auxiliary: &program_info.auxiliary,
        threads: &threads,
        vmas: &vmas,
    }
    .lay_out();
    let mut file = Output { file, limit };
    file.write_head(thread, buffer, &head).await?;
    for one in &dumped {
        file.write_vma(thread, one).await?;
    }
    file.close(thread, &dumped).await?;
    Ok(Some(name))
}

/// Lists the program's VMAs, if there is enough kernel memory for the dump.
fn vmas(thread: &Thread) -> Result<Vec<Vma>, Errno> {
    /// Kernel memory for a VMA in this list, in the list of dumped ones, and in the file's head;
    /// the latter two grow by copying.
    const BYTES: usize = 4 * (2 * size_of::<Vma>() + 64);
    let space = thread.process.space();
    let count = space.vmas().count();
    let threads = thread.process.thread_dumps.lock().len() as u64 + 1;
    has_room((count * BYTES) as u64 + 2 * threads * DUMP_BYTES)?;
    let mut vmas = Vec::new();
    reserve_in(&mut vmas, count)?;
    vmas.extend(space.vmas().all());
    Ok(vmas)
}

/// Returns RLIMIT_CORE.
async fn limit(thread: &mut Thread, buffer: u64) -> Result<u64, Errno> {
    const CORE: u64 = 4;
    thread
        .remote_syscall(number::GETRLIMIT, [CORE, buffer, 0, 0, 0, 0])
        .await?;
    let mut bytes = [0; 8];
    thread.process.space().read(buffer, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

async fn open(
    thread: &mut Thread,
    buffer: u64,
    name: &[u8],
    (flags, mode): (u64, u64),
) -> Result<u64, Errno> {
    const AT_FDCWD: u64 = -100_i64 as u64;
    const CLOSE_ON_EXEC: u64 = 0o2_000_000;
    let path = [name, &[0]].concat();
    thread.process.space().write(buffer, &path)?;
    let how = [AT_FDCWD, buffer, flags | CLOSE_ON_EXEC, mode, 0, 0];
    thread.remote_syscall(number::OPENAT, how).await
}

async fn name(thread: &mut Thread, buffer: u64) -> Result<Vec<u8>, Errno> {
    let pattern = pattern(thread, buffer).await.unwrap_or_default();
    let program = thread.process.program_info.lock().name.clone();
    let pid = thread.process.pages().pid();
    Ok(file_name(&pattern, pid, &program))
}

/// Reads Linux' core_pattern.
async fn pattern(thread: &mut Thread, buffer: u64) -> Result<Vec<u8>, Errno> {
    /// Maximum length of Linux' core_pattern.
    const PATTERN_MAX: u64 = 128;
    let file = open(thread, buffer, b"/proc/sys/kernel/core_pattern", (0, 0)).await?;
    let read = thread
        .remote_syscall(number::PREAD64, [file, buffer, PATTERN_MAX, 0, 0, 0])
        .await;
    thread
        .remote_syscall(number::CLOSE, [file, 0, 0, 0, 0, 0])
        .await?;
    let mut bytes = alloc::vec![0; read?.min(PATTERN_MAX) as usize];
    thread.process.space().read(buffer, &mut bytes)?;
    Ok(bytes)
}

async fn create(thread: &mut Thread, buffer: u64, name: &[u8]) -> Result<u64, Errno> {
    /// `O_WRONLY`, `O_CREAT`, `O_TRUNC`, and `O_NOFOLLOW`: it does not write through a symbolic
    /// link.
    const FLAGS: u64 = 0o1 | 0o100 | 0o1000 | 0o400_000;
    open(thread, buffer, name, (FLAGS, 0o600)).await
}

struct Output {
    file: u64,
    /// Maximum size of the file.
    limit: u64,
}

impl Output {
    /// Writes a part of the program's memory, up to the file's size limit.
    async fn write(
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
            match thread.remote_syscall(number::PWRITE64, arguments).await? {
                0 => return Err(Errno::EIO),
                written => done += written.min(size - done),
            }
        }
        Ok(())
    }

    async fn write_head(&self, thread: &mut Thread, buffer: u64, head: &[u8]) -> Result<(), Errno> {
        for (part, offset) in head
            .chunks(BUFFER_SIZE as usize)
            .zip((0..).step_by(BUFFER_SIZE as usize))
        {
            thread.process.space().write(buffer, part)?;
            self.write(thread, buffer, part.len() as u64, offset)
                .await?;
        }
        Ok(())
    }

    /// Writes the present pages of a VMA; the others stay holes. Those of a base mapping the base
    /// knows, up to the end of the file.
    async fn write_vma(&self, thread: &mut Thread, dumped: &DumpedVma) -> Result<(), Errno> {
        let Vma { start, end, .. } = dumped.vma;
        if dumped.vma.flags.contains(VmaFlags::BASE) {
            let written = self.write(thread, start, end - start, dumped.offset).await;
            return match written {
                Err(Errno::EFAULT) => Ok(()),
                written => written,
            };
        }
        let mut next = start;
        loop {
            let run = thread.process.space().present_range(next, end);
            let Some((from, to)) = run else {
                return Ok(());
            };
            self.write(thread, from, to - from, dumped.offset + (from - start))
                .await?;
            next = to;
        }
    }

    async fn close(&mut self, thread: &mut Thread, dumped: &[DumpedVma]) -> Result<(), Errno> {
        let end = dumped
            .last()
            .map_or(PAGE, |last| last.offset + (last.vma.end - last.vma.start));
        let size = end.min(self.limit);
        thread
            .remote_syscall(number::FTRUNCATE, [self.file, size, 0, 0, 0, 0])
            .await?;
        thread
            .remote_syscall(number::CLOSE, [self.file, 0, 0, 0, 0, 0])
            .await
            .map(drop)
    }
}
