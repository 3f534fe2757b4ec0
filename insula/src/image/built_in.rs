//! The image that is there without being added: the lightweight kernel.

use std::path::{Path, PathBuf};

/// Its name. A resident image of this name comes before it.
pub(super) const NAME: &str = "lwk";
/// Where it is, from the folder of the command: `/usr/lib/insula/lwk` if that is `/usr/bin`.
const PLACE: &str = "../lib/insula/lwk";
/// Where packages put it.
const INSTALLED: &str = "/usr/lib/insula/lwk";

/// Its file.
pub(super) fn path() -> PathBuf {
    let command = std::env::current_exe().ok();
    let beside = command.as_deref().and_then(Path::parent);
    let beside = beside.map(|folder| folder.join(PLACE));
    match beside.and_then(|path| path.canonicalize().ok()) {
        Some(path) => path,
        None => INSTALLED.into(),
    }
}
