//! Files installed with the command: the built-in image, which is the lightweight kernel, and the
//! agent of Linux nodes.

use std::path::{Path, PathBuf};

/// Name of the built-in image. A resident image of this name takes precedence.
pub const NAME: &str = "lwk";
/// Folder of these files, relative to that of the command: `/usr/lib/insula` for `/usr/bin`.
const LIBRARY_FOLDER: &str = "../lib/insula";
/// Folder of these files in packages.
const INSTALLED: &str = "/usr/lib/insula";

/// Path of the built-in image.
pub(super) fn path() -> PathBuf {
    companion(NAME)
}

/// Path of the monitor of confined nodes.
pub(super) fn monitor() -> PathBuf {
    companion("vmm")
}

/// Path of the agent.
#[must_use]
pub fn agent() -> PathBuf {
    companion("agent")
}

/// Path of the program that becomes a program's proxy in a container.
#[must_use]
pub fn proxy() -> PathBuf {
    companion("insula-proxy")
}

/// The files that are installed with the command, each with its name.
#[must_use]
pub fn companions() -> [(&'static str, PathBuf); 4] {
    [
        (NAME, path()),
        ("vmm", monitor()),
        ("agent", agent()),
        ("insula-proxy", proxy()),
    ]
}

/// Whether an initrd that is recorded as this file was built with the agent.
#[must_use]
pub fn is_agent(initrd: &Path) -> bool {
    initrd == agent()
}

fn companion(name: &str) -> PathBuf {
    let command = std::env::current_exe().ok();
    let beside = command.as_deref().and_then(Path::parent);
    let beside = beside.map(|folder| folder.join(LIBRARY_FOLDER).join(name));
    match beside.and_then(|path| path.canonicalize().ok()) {
        Some(path) => path,
        None => Path::new(INSTALLED).join(name),
    }
}
