//! The kernels that the testbed has fetched, if any.

use std::fs::read_dir;
use std::path::{Path, PathBuf};

/// Paths of all `build/kernels/*/boot/vmlinuz-*`; prints a note if there are none.
pub(crate) fn kernels() -> Vec<PathBuf> {
    let entries = |folder: PathBuf| {
        read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../build/kernels");
    let files = entries(folder).flat_map(|kernel| entries(kernel.join("boot")));
    let name = |path: &PathBuf| {
        path.file_name()
            .map(|name| name.to_string_lossy().into_owned())
    };
    let kernels: Vec<_> = files
        .filter(|path| name(path).is_some_and(|name| name.starts_with("vmlinuz-")))
        .collect();
    if kernels.is_empty() {
        println!("skipped: no kernels in build/kernels");
    }
    kernels
}
