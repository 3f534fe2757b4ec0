//! Programs that the base has started and that cannot be loaded: what is said of it, and the status they exit with.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;

use crate::info;
use crate::model::elf::FormatError;
use crate::model::errno::Errno;
use crate::model::number;
use crate::model::vma::PAGE;
use crate::task::program_file::LoadError;
use crate::task::thread::Thread;

const STANDARD_ERROR: u64 = 2;

/// Says why a program could not be loaded: in the log, and as a shell does to its standard error.
pub(super) async fn report(thread: &mut Thread, error: LoadError) {
    let why = words(error);
    info!("process {}: {why}", thread.id);
    // Where that is not open, or there is no memory for it, the status remains.
    let _ = write(thread, &format!("insula: {why}\n")).await;
}

/// The exit status: 127 if there is no such file, 126 if it is not executable.
pub(super) fn exit_code(error: LoadError) -> u64 {
    match error {
        LoadError::Syscall(Errno::ENOENT) => 127,
        _ => 126,
    }
}

fn words(error: LoadError) -> String {
    match error {
        LoadError::Format(FormatError(why)) => format!("the program cannot be executed: {why}"),
        LoadError::Syscall(errno) => format!("the program cannot be loaded: {}", reason(errno)),
    }
}

fn reason(errno: Errno) -> String {
    let known = match errno {
        Errno::ENOENT => "its file, or that of its interpreter, is missing",
        Errno::EACCES => "the permission is missing",
        Errno::ENOMEM => "there is not enough memory",
        Errno::ELOOP => "too many interpreters follow each other",
        Errno(number) => return format!("a call has failed with errno {number}"),
    };
    known.to_owned()
}

async fn write(thread: &mut Thread, text: &str) -> Result<(), Errno> {
    let bytes = text.as_bytes();
    let bytes = &bytes[..bytes.len().min(PAGE as usize)];
    let buffer = thread.map_buffer(PAGE).await?;
    thread.process.space().write(buffer, bytes)?;
    let arguments = [STANDARD_ERROR, buffer, bytes.len() as u64, 0, 0, 0];
    thread
        .remote_syscall(number::WRITE, arguments)
        .await
        .map(drop)
}
