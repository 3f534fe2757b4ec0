//! The kernels that the testbed has fetched, if any.

use std::fs::read_dir;
use std::path::{Path, PathBuf};

/// Set by `make test`, which fetches them: then their tests must not be skipped.
const FETCHED: &str = "INSULA_FETCHED";

/// Paths of all `build/kernels/*/boot/vmlinuz-*`; prints a note if there are none.
pub(crate) fn kernels() -> Vec<PathBuf> {
    let entries = |folder: PathBuf| {
        read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
    };
    // Crates at any depth use this file.
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let folder = folders
        .map(|folder| folder.join("build/kernels"))
        .find(|folder| folder.is_dir());
    let files = entries(folder.unwrap_or_default()).flat_map(|kernel| entries(kernel.join("boot")));
    let name = |path: &PathBuf| {
        path.file_name()
            .map(|name| name.to_string_lossy().into_owned())
    };
    let kernels: Vec<_> = files
        .filter(|path| name(path).is_some_and(|name| name.starts_with("vmlinuz-")))
        .collect();
    if kernels.is_empty() {
        assert!(
            std::env::var_os(FETCHED).is_none(),
            "no kernels in build/kernels"
        );
        println!("skipped: no kernels in build/kernels");
    }
    kernels
}
