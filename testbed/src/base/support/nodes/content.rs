//! Folders with programs for nodes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::base::Finding;

/// Makes a folder with busybox, and links to it by these names.
pub(crate) fn make(folder: &str, programs: &[&str]) -> Result<(), Finding> {
    let bin = Path::new(folder).join("bin");
    fs::create_dir_all(&bin)?;
    fs::copy("/bin/busybox", bin.join("busybox"))?;
    for name in programs {
        symlink("busybox", bin.join(name))?;
    }
    Ok(())
}

/// Adds a program of the base, with the libraries that it needs.
pub(crate) fn add_program(folder: &str, program: &str) -> Result<(), Finding> {
    let name = Path::new(program).file_name().unwrap_or_default();
    fs::copy(program, Path::new(folder).join("bin").join(name))?;
    let needed = Command::new("ldd").arg(program).output()?;
    let needed = String::from_utf8_lossy(&needed.stdout).into_owned();
    let is_path = |word: &&str| word.starts_with('/');
    for library in needed.split_whitespace().filter(is_path) {
        let copy = format!("{folder}{library}");
        fs::create_dir_all(Path::new(&copy).parent().unwrap_or(Path::new(folder)))?;
        fs::copy(library, &copy)?;
    }
    Ok(())
}
