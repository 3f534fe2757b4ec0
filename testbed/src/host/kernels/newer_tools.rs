//! What the headers of a newer Debian's kernel need to build modules on this one: its build tools get the
//! libraries that they were linked with, and the compiler is this computer's.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::fetch::{FetchError, at};
use super::{Kernel, headers_of};
use crate::host::packages;
use crate::host::suites::Suite;
use crate::host::tool::Tool;

/// Folder of shared libraries, and the loader in it, in an unpacked Debian.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const LOADER: &str = "ld-linux-x86-64.so.2";
/// Package and path of the program that changes which loader and libraries a program has.
const PATCHELF: (&str, &str) = ("patchelf", "usr/bin/patchelf");
/// The kernel's compiler, with options as this computer's has them. Its attributes that this one does not know
/// only check more.
const COMPILER: &str = r#"#!/bin/sh
for word do
	shift
	case $word in
	-fmin-function-alignment=*) set -- "$@" "-falign-functions=${word#*=}" ;;
	*) set -- "$@" "$word" ;;
	esac
done
exec gcc "$@" -Wno-attributes
"#;
/// Start of a program's file (ELF specification).
const ELF: [u8; 4] = *b"\x7fELF";

/// Makes the unpacked headers usable, whose tools are in the package `kbuild`.
pub(super) fn make_usable(kernel: &Kernel, suite: &Suite, kbuild: &str) -> Result<(), FetchError> {
    let folder = headers_of(kernel.flavour);
    suite.unpack_all(&[kbuild], &folder)?;
    let tools = folder.join("usr/lib").join(kbuild);
    let libraries = folder.join(LIBRARIES);
    for program in programs(&tools)? {
        use_libraries(&program, &libraries)?;
    }
    let compiler = folder.join("cc");
    fs::write(&compiler, COMPILER).map_err(at(&compiler))?;
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&compiler, executable).map_err(at(&compiler))?;
    name_compiler(&kernel.headers(), &compiler)?;
    // This computer's BTF would not be that of the kernel.
    super::fetch::remove(&kernel.headers().join("vmlinux"))
}

/// The programs in a folder and those in it.
fn programs(folder: &Path) -> Result<Vec<PathBuf>, FetchError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(at(folder))? {
        let entry = entry.map_err(at(folder))?;
        let path = entry.path();
        let kind = entry.file_type().map_err(at(&path))?;
        if kind.is_dir() {
            found.append(&mut programs(&path)?);
        } else if kind.is_file() && is_program(&path).map_err(at(&path))? {
            found.push(path);
        }
    }
    Ok(found)
}

fn is_program(path: &Path) -> std::io::Result<bool> {
    let is_executable = fs::metadata(path)?.permissions().mode() & 0o100 != 0;
    let mut start = [0; ELF.len()];
    let read = fs::File::open(path)?.read(&mut start)?;
    Ok(is_executable && start[..read] == ELF)
}

/// Has a program run with these libraries, and with the loader among them.
fn use_libraries(program: &Path, libraries: &Path) -> Result<(), FetchError> {
    let patchelf = packages::file(PATCHELF.0, PATCHELF.1)?;
    Tool::new(&patchelf.to_string_lossy())
        .arg("--set-interpreter")
        .arg(libraries.join(LOADER))
        .args(["--force-rpath", "--set-rpath"])
        .arg(libraries)
        .arg(program)
        .run()?;
    Ok(())
}

/// Names the compiler, which is that of the newer Debian in the headers.
fn name_compiler(headers: &Path, compiler: &Path) -> Result<(), FetchError> {
    let path = headers.join(".kernelvariables");
    let text = fs::read_to_string(&path).map_err(at(&path))?;
    let kept = text.lines().filter(|line| !line.starts_with("CC ="));
    let own = format!("CC = {}", compiler.display());
    let lines: Vec<_> = kept.chain([own.as_str()]).collect();
    fs::write(&path, lines.join("\n") + "\n").map_err(at(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiler_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".kernelvariables");
        fs::write(&path, "override ARCH = x86\nCC = $(CROSS_COMPILE)gcc-99\n").unwrap();
        name_compiler(folder.path(), Path::new("/cc")).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, "override ARCH = x86\nCC = /cc\n");
    }

    #[test]
    fn programs_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let nested = folder.path().join("scripts");
        fs::create_dir(&nested).unwrap();
        let files = [
            ("program", &b"\x7fELF\x02"[..], 0o755),
            ("data", b"\x7fELF", 0o644),
            ("script", b"#!/bin/sh\n", 0o755),
        ];
        for (name, content, mode) in files {
            let path = nested.join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        assert_eq!(programs(folder.path()).unwrap(), [nested.join("program")]);
    }
}
