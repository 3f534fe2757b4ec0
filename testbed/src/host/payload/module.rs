//! Builds the kernel modules.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::host::kernels::Kernel;
use crate::host::project;
use crate::host::tool::{Tool, ToolError};

/// Folders of the repository with the module's sources.
const SOURCES: [&str; 3] = ["kmod", "abi/include", TEST_DRIVER];
/// Folder of drivers for tests.
const TEST_DRIVER: &str = "testbed/src/base/driver";
/// Files that are copied: all others in those folders are build products.
const SOURCE_EXTENSIONS: [&str; 6] = ["c", "h", "S", "lds", "rst", "md"];
const SOURCE_NAMES: [&str; 2] = ["Kbuild", "Makefile"];
/// Printed by the kernel's makefiles on every build, and no fault of the module: stock headers lack
/// the kernel image that BTF needs, and those of newer Debians name its program of theirs.
const EXPECTED: [&str; 2] = ["skipping btf generation", "pahole version differs"];

/// Failure to build the module.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// The compiler, or another program, failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The build succeeded, but printed warnings.
    #[error("insula.ko for {release} builds with warnings:\n{output}")]
    Warnings {
        /// The kernel's `uname -r`.
        release: String,
        /// Output of the build.
        output: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The underlying error.
        source: io::Error,
    },
}

/// Modules that are built: that of base and node, and that of a node's virtio devices.
pub const BUILT: [&str; 2] = ["insula.ko", "insula_virtio.ko"];

/// Drivers that only tests load, in the base.
pub const TEST_DRIVERS: [&str; 5] = [
    FAULT_DRIVER,
    "insula_hold.ko",
    "insula_nested.ko",
    "insula_quiet.ko",
    "insula_ring.ko",
];
/// Driver that makes faults for a watcher to find, in the base and in nodes.
pub const FAULT_DRIVER: &str = "insula_fault.ko";
/// Driver that holds a lock of its kernel while it reads from a disk, in nodes.
pub const RTNL_DRIVER: &str = "insula_rtnl.ko";
/// Driver that only tests load, in nodes.
pub const HOSTILE_DRIVER: &str = "insula_hostile.ko";

/// Folder of the drivers for tests that were built along with the modules of that folder.
#[must_use]
pub fn test_driver(modules: &Path) -> PathBuf {
    modules.with_file_name(TEST_DRIVER)
}

/// Builds the modules for a kernel, in a folder of its own per kernel, and returns the folder. Only
/// what changed is compiled again.
///
/// # Errors
/// When it does not compile, or does with warnings.
pub fn build(kernel: &Kernel) -> Result<PathBuf, ModuleError> {
    let folder = project::build().join("module").join(&kernel.release);
    for source in SOURCES {
        mirror(&project::root().join(source), &folder.join(source))?;
    }
    let target = folder.join("kmod");
    make(kernel, &target)?;
    // Debug information is most of their size, and nodes keep the files in memory: stripped, as
    // DKMS does.
    let modules = BUILT.map(|name| target.join(name));
    Tool::new("strip")
        .arg("--strip-debug")
        .args(modules)
        .run()?;
    Ok(target)
}

/// The same, and drivers for tests along with them.
///
/// # Errors
/// As [`build`].
pub fn build_with_test_drivers(kernel: &Kernel) -> Result<PathBuf, ModuleError> {
    let modules = build(kernel)?;
    make(kernel, &test_driver(&modules))?;
    Ok(modules)
}

fn make(kernel: &Kernel, part: &Path) -> Result<(), ModuleError> {
    let output = Tool::new("make")
        .arg("-C")
        .arg(kernel.headers())
        .arg(format!("M={}", part.display()))
        .arg(format!(
            "-j{}",
            std::thread::available_parallelism().map_or(1, usize::from)
        ))
        .args(["KCFLAGS=-Werror", "modules"])
        // Flags of an outer make do not apply here.
        .env("MAKEFLAGS", "")
        .run()?;
    let warned = output.lines().any(|line| {
        let line = line.to_ascii_lowercase();
        line.contains("warning") && !EXPECTED.iter().any(|expected| line.contains(expected))
    });
    if warned {
        return Err(ModuleError::Warnings {
            release: kernel.release.clone(),
            output,
        });
    }
    Ok(())
}

/// Makes the sources in `to` equal to those in `from`. Unchanged files keep their time stamp, so
/// that make skips them.
fn mirror(from: &Path, to: &Path) -> Result<(), ModuleError> {
    fs::create_dir_all(to).map_err(at(to))?;
    let mut kept = BTreeSet::new();
    for entry in fs::read_dir(from).map_err(at(from))? {
        let entry = entry.map_err(at(from))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            mirror(&source, &target)?;
        } else if is_source(&source) {
            copy_if_changed(&source, &target)?;
        }
        kept.insert(entry.file_name());
    }
    for entry in fs::read_dir(to).map_err(at(to))? {
        let path = entry.map_err(at(to))?.path();
        let gone = path.file_name().is_some_and(|name| !kept.contains(name));
        if gone && is_source(&path) {
            fs::remove_file(&path).map_err(at(&path))?;
        }
    }
    Ok(())
}

fn copy_if_changed(source: &Path, target: &Path) -> Result<(), ModuleError> {
    let content = fs::read(source).map_err(at(source))?;
    if fs::read(target).is_ok_and(|old| old == content) {
        return Ok(());
    }
    fs::write(target, content).map_err(at(target))
}

/// Whether the file is a source, not a build product.
fn is_source(path: &Path) -> bool {
    let has = |names: &[&str], part: Option<&std::ffi::OsStr>| {
        part.and_then(|part| part.to_str())
            .is_some_and(|part| names.contains(&part))
    };
    let generated = path.to_string_lossy().ends_with(".mod.c");
    !generated
        && (has(&SOURCE_EXTENSIONS, path.extension()) || has(&SOURCE_NAMES, path.file_name()))
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> ModuleError + use<> {
    let path = path.to_owned();
    |source| ModuleError::File { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirror_follows_sources_and_keeps_products() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir_all(from.join("arch")).unwrap();
        fs::write(from.join("a.c"), "a").unwrap();
        fs::write(from.join("arch/b.S"), "b").unwrap();
        fs::write(from.join("a.o"), "built").unwrap();
        mirror(&from, &to).unwrap();
        fs::write(to.join("a.ko"), "built").unwrap();
        fs::write(to.join("a.mod.c"), "built").unwrap();
        assert!(to.join("arch/b.S").exists());
        assert!(!to.join("a.o").exists());

        let time = fs::metadata(to.join("arch/b.S"))
            .unwrap()
            .modified()
            .unwrap();
        fs::rename(from.join("a.c"), from.join("c.c")).unwrap();
        mirror(&from, &to).unwrap();
        assert!(!to.join("a.c").exists());
        assert!(to.join("c.c").exists());
        assert!(to.join("a.ko").exists() && to.join("a.mod.c").exists());
        assert_eq!(
            fs::metadata(to.join("arch/b.S"))
                .unwrap()
                .modified()
                .unwrap(),
            time
        );
    }
}
