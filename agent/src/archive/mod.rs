//! The program `tar` by which CRIU packs file systems in memory, and unpacks them.
//!
//! CRIU executes it for each of a container's, while the container stands still. This one is in memory
//! already, and compresses by itself, where GNU's starts `gzip` beside. Options and format are GNU's, as far as
//! CRIU uses them (`tmpfs_dump` and `tmpfs_restore` in `criu/filesystems.c`): what one packs the other unpacks.

mod pack;
#[cfg(test)]
mod tests;
mod unpack;

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use pack::pack;
use unpack::unpack;

/// Its name, as which it is executed.
pub(crate) const NAME: &str = "tar";
/// Options that say what it does anyway.
const IMPLIED: [&str; 8] = [
    "--gzip",
    "--no-unquote",
    "--no-wildcards",
    "--one-file-system",
    "--check-links",
    "--preserve-permissions",
    "--sparse",
    "--numeric-owner",
];

/// Whether this program is executed under that name.
pub(crate) fn is_meant(program: &OsStr) -> bool {
    Path::new(program).file_name() == Some(NAME.as_ref())
}

/// Packs a folder to the standard output, or unpacks the standard input to it.
pub(crate) fn run(words: impl Iterator<Item = OsString>) -> ExitCode {
    let done = match Task::of(words) {
        Ok(task) => std::env::set_current_dir(&task.folder).and_then(|()| match task.action {
            Action::Pack => pack(Path::new("."), io::stdout().lock()),
            Action::Unpack => unpack(Path::new("."), io::stdin().lock()),
        }),
        Err(error) => Err(io::Error::other(error)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{NAME}: {error}");
            ExitCode::from(2)
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Action {
    Pack,
    Unpack,
}

#[derive(Debug, PartialEq, Eq)]
struct Task {
    action: Action,
    folder: PathBuf,
}

impl Task {
    fn of(mut words: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let (mut action, mut folder) = (None, None);
        while let Some(word) = words.next() {
            match word.to_str() {
                Some("--create") => action = Some(Action::Pack),
                Some("--extract") => action = Some(Action::Unpack),
                Some("--directory") => folder = words.next().map(PathBuf::from),
                // All of the folder.
                Some(".") => {}
                Some(option) if IMPLIED.contains(&option) => {}
                _ => return Err(format!("{}: unknown option", word.display())),
            }
        }
        match (action, folder) {
            (Some(action), Some(folder)) => Ok(Self { action, folder }),
            _ => Err("--create or --extract, and --directory, are needed".to_owned()),
        }
    }
}
