//! Where things lie in the source tree.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// The repository that this program was built from.
pub fn root() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest)
}

/// The folder for everything fetched and built beside what cargo builds. Nothing
/// outside of it and of cargo's own is ever written.
pub fn build() -> PathBuf {
    root().join("build")
}

/// Waits until no other process changes the build folder, and keeps others from
/// it until the answer is dropped.
///
/// # Errors
/// When the folder cannot be written.
pub fn lock() -> io::Result<File> {
    fs::create_dir_all(build())?;
    let file = File::create(build().join("lock"))?;
    file.lock()?;
    Ok(file)
}
