//! Opening a program, and its interpreter, by remote calls.

use alloc::format;
use alloc::vec::Vec;

use crate::hw::memory::room::{NoMemory, zeroed};
use crate::model::elf::{FormatError, HEAD_SIZE, Program};
use crate::model::errno::Errno;
use crate::model::initial_stack::Arguments;
use crate::model::number;
use crate::model::shebang::Interpreter;
use crate::model::vma::PAGE;
use crate::task::image::{Image, OpenFile};
use crate::task::layout::STACK_SIZE;
use crate::task::thread::Thread;

/// `AT_FDCWD`.
pub(super) const AT_FDCWD: u64 = -100_i64 as u64;

/// Reason why a program could not be loaded.
#[derive(Clone, Copy, Debug)]
pub(super) enum LoadError {
    Syscall(Errno),
    Format(FormatError),
}

impl From<Errno> for LoadError {
    fn from(error: Errno) -> Self {
        Self::Syscall(error)
    }
}

impl From<NoMemory> for LoadError {
    fn from(error: NoMemory) -> Self {
        Self::Syscall(error.into())
    }
}

impl From<FormatError> for LoadError {
    fn from(error: FormatError) -> Self {
        Self::Format(error)
    }
}

impl Image {
    /// Closes the files.
    pub(super) async fn close(self, thread: &mut Thread) {
        let interpreter = self.interpreter.map(|found| found.file);
        for file in [self.program.file].into_iter().chain(interpreter) {
            // Closing a file that was only read does not fail.
            let _ = close(thread, file).await;
        }
    }
}

/// Opens the program that `arguments` names. For scripts, the interpreter replaces the path and is
/// added to the arguments. A relative path starts at `directory`; `buffer` is memory of the
/// program.
///
/// # Errors
/// As of execve(2).
pub(super) async fn open_program(
    thread: &mut Thread,
    directory: u64,
    arguments: &mut Arguments,
    buffer: u64,
) -> Result<Image, LoadError> {
    /// Maximum nesting of scripts.
    const SCRIPTS_MAX: usize = 5;
    let mut directory = directory;
    for _ in 0..=SCRIPTS_MAX {
        let (file, head) = open(thread, directory, &arguments.path, buffer).await?;
        let Some(interpreter) = Interpreter::read(&head) else {
            let found = parse(thread, file, &head).await?;
            return open_interpreter(thread, found, buffer).await;
        };
        close(thread, file).await?;
        interpreter.apply(arguments)?;
        directory = AT_FDCWD;
    }
    Err(Errno::ELOOP.into())
}

async fn open_interpreter(
    thread: &mut Thread,
    program: OpenFile,
    buffer: u64,
) -> Result<Image, LoadError> {
    let interpreter = match program.program.interpreter {
        None => None,
        Some(name) => match open_named(thread, program.file, buffer, name).await {
            Ok(interpreter) => Some(interpreter),
            Err(error) => {
                close(thread, program.file).await?;
                return Err(error);
            }
        },
    };
    Ok(Image {
        program,
        interpreter,
    })
}

/// Opens the program whose name is in a part of a file.
async fn open_named(
    thread: &mut Thread,
    file: u64,
    buffer: u64,
    (offset, size): (u64, u64),
) -> Result<OpenFile, LoadError> {
    let mut name = read_file(thread, file, buffer, offset, size).await?;
    name.pop();
    let (file, head) = open(thread, AT_FDCWD, &name, buffer).await?;
    parse(thread, file, &head).await
}

/// Opens an executable file and reads its head. Of a FIFO the opening does not wait for a writer:
/// as on Linux, it cannot be executed.
async fn open(
    thread: &mut Thread,
    directory: u64,
    name: &[u8],
    buffer: u64,
) -> Result<(u64, Vec<u8>), LoadError> {
    const EXECUTE: u64 = 1;
    const AT_EACCESS: u64 = 0x200;
    const RDONLY_NONBLOCK_CLOEXEC: u64 = 0o2_004_000;
    let mut path = name.to_vec();
    path.push(0);
    thread.process.space().write(buffer, &path)?;
    let access = [directory, buffer, EXECUTE, AT_EACCESS, 0, 0];
    thread.remote_syscall(number::FACCESSAT2, access).await?;
    let open = [directory, buffer, RDONLY_NONBLOCK_CLOEXEC, 0, 0, 0];
    let file = thread.remote_syscall(number::OPENAT, open).await?;
    match read_file(thread, file, buffer, 0, HEAD_SIZE as u64).await {
        Ok(head) => Ok((file, head)),
        Err(error) => {
            close(thread, file).await?;
            // A directory or a FIFO can be opened, but not executed.
            let is_other = matches!(error, Errno::EISDIR | Errno::ESPIPE);
            Err(if is_other { Errno::EACCES } else { error }.into())
        }
    }
}

async fn parse(thread: &mut Thread, file: u64, head: &[u8]) -> Result<OpenFile, LoadError> {
    match Program::parse(head) {
        Ok(program) => Ok(OpenFile { file, program }),
        Err(error) => {
            close(thread, file).await?;
            Err(error.into())
        }
    }
}

async fn read_file(
    thread: &mut Thread,
    file: u64,
    buffer: u64,
    offset: u64,
    size: u64,
) -> Result<Vec<u8>, Errno> {
    let size = size.min(STACK_SIZE / 2);
    let read = thread
        .remote_syscall(number::PREAD64, [file, buffer, size, offset, 0, 0])
        .await?;
    let mut bytes = zeroed(read.min(size) as usize)?;
    thread.process.space().read(buffer, &mut bytes)?;
    Ok(bytes)
}

pub(super) async fn close(thread: &mut Thread, file: u64) -> Result<(), Errno> {
    thread
        .remote_syscall(number::CLOSE, [file, 0, 0, 0, 0, 0])
        .await
        .map(drop)
}

/// The absolute path of an open file; none where the base shows none.
pub(super) async fn path_of(thread: &mut Thread, file: u64, buffer: u64) -> Option<Vec<u8>> {
    let link = format!("/proc/self/fd/{file}\0").into_bytes();
    let target = buffer + PAGE;
    thread.process.space().write(buffer, &link).ok()?;
    let read = [buffer, target, PAGE, 0, 0, 0];
    let size = thread.remote_syscall(number::READLINK, read).await.ok()?;
    let mut path = zeroed(size.min(PAGE) as usize).ok()?;
    thread.process.space().read(target, &mut path).ok()?;
    // Others are no files of this root.
    path.starts_with(b"/").then_some(path)
}
