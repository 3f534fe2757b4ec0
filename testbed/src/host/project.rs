//! Paths of the source tree.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Repository that this program was built from.
pub fn root() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest)
}

/// Folder for everything fetched and built, apart from cargo's target folder. Nothing outside of
/// these two is ever written.
pub fn build() -> PathBuf {
    root().join("build")
}

/// Locks the build folder against other processes until the returned file is dropped.
///
/// # Errors
/// When the folder cannot be written.
pub fn lock() -> io::Result<File> {
    fs::create_dir_all(build())?;
    let file = File::create(build().join("lock"))?;
    file.lock()?;
    Ok(file)
}
