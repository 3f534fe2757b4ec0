//! CRIU for an image: the program, its libraries and their loader, as they are installed on the base.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use insula_base::error::Error;

use super::Initramfs;

/// Folder of CRIU in an initial file system; the agent finds it at
/// [`insula_agent::container::CRIU_FOLDER`].
const FOLDER: &str = "lib/insula/criu";
/// The loader of a program's libraries, beside the program if those are, too.
const LOADER: &str = "ld-linux-x86-64.so.2";
const INSTALLED_LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

/// Adds CRIU.
///
/// # Errors
/// When its libraries cannot be found, or a file cannot be read.
pub(super) fn add(archive: Initramfs, program: &Path) -> Result<Initramfs, Error> {
    let failed = |error: io::Error| {
        Error::new(format!(
            "CRIU cannot be added to the image: {}",
            program.display()
        ))
        .because(error)
        .nothing_kept()
        .hint("install the package `criu`, or name its file with --criu=FILE")
    };
    let files = files(program).map_err(failed)?;
    let mut archive = archive.directory(FOLDER).map_err(failed)?;
    for (name, path) in files {
        let content = fs::read(&path).map_err(failed)?;
        let inside = format!("{FOLDER}/{name}");
        archive = archive.program(&inside, &content).map_err(failed)?;
    }
    Ok(archive)
}

/// The files of a program, by their names in the image.
fn files(program: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let folder = program.parent().unwrap_or(Path::new("/"));
    let beside = folder.join(LOADER);
    let (loader, options) = match beside.exists() {
        true => (beside, vec![Path::new("--library-path"), folder]),
        false => (PathBuf::from(INSTALLED_LOADER), Vec::new()),
    };
    let list = Command::new(&loader)
        .args(options)
        .args([Path::new("--list"), program])
        .stdin(Stdio::null())
        .output()?;
    if !list.status.success() {
        let text = String::from_utf8_lossy(&list.stderr);
        return Err(io::Error::other(text.trim().to_owned()));
    }
    let mut files = libraries(&String::from_utf8_lossy(&list.stdout))?;
    files.push(("criu".to_owned(), program.to_owned()));
    files.push(("ld.so".to_owned(), loader));
    Ok(files)
}

/// Names and paths of libraries in a loader's list.
fn libraries(list: &str) -> io::Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for line in list.lines() {
        // The loader itself, and the kernel's part, have no arrow.
        let Some((name, path)) = line.trim().split_once(" => ") else {
            continue;
        };
        let path = path.rsplit_once(" (").map_or(path, |(path, _)| path);
        if !path.starts_with('/') {
            return Err(io::Error::other(format!("the library {name} is missing")));
        }
        // One that the loader was asked for by its path.
        if !name.starts_with('/') {
            found.push((name.to_owned(), PathBuf::from(path)));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_those_of_the_list() {
        let list = "\tlinux-vdso.so.1 (0x00007f)\n\tlibc.so.6 => /lib/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 => /a/ld-linux-x86-64.so.2 (0x0)\n";
        let found = libraries(list).unwrap();
        assert_eq!(
            found,
            [("libc.so.6".to_owned(), PathBuf::from("/lib/libc.so.6"))]
        );
        let missing = libraries("\tlibnet.so.9 => not found\n").unwrap_err();
        assert!(missing.to_string().contains("libnet.so.9"));
    }

    #[test]
    fn a_program_has_loader_and_libraries() {
        let files = files(Path::new("/bin/sh")).unwrap();
        let names: Vec<_> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert!(names.contains(&"libc.so.6"), "{names:?}");
        assert_eq!(names[names.len() - 2..], ["criu", "ld.so"]);
    }
}
