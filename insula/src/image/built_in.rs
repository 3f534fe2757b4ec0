//! What comes with the command: the image that is there without being added, which is the
//! lightweight kernel, and the agent of Linux nodes.

use std::path::{Path, PathBuf};

/// Its name. A resident image of this name comes before it.
pub const NAME: &str = "lwk";
/// Where all that is, from the folder of the command: `/usr/lib/insula` if that is `/usr/bin`.
const PLACE: &str = "../lib/insula";
/// Where packages put it.
const INSTALLED: &str = "/usr/lib/insula";

/// The image's file.
pub(super) fn path() -> PathBuf {
    companion(NAME)
}

/// The agent's file.
pub(super) fn agent() -> PathBuf {
    companion("agent")
}

fn companion(name: &str) -> PathBuf {
    let command = std::env::current_exe().ok();
    let beside = command.as_deref().and_then(Path::parent);
    let beside = beside.map(|folder| folder.join(PLACE).join(name));
    match beside.and_then(|path| path.canonicalize().ok()) {
        Some(path) => path,
        None => Path::new(INSTALLED).join(name),
    }
}
