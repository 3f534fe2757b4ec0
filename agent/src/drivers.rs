//! Loading the image's kernel modules.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::system::finit_module;

use crate::log::log;

/// The list of their files, one per line, in order of dependency.
const LIST: &str = "/lib/insula/modules";

/// Loads all modules, and removes their files to free the node's memory. Failures are logged.
pub(crate) fn load_all() {
    // Without a list everything is built in.
    for path in fs::read_to_string(LIST).unwrap_or_default().lines() {
        if let Err(error) = load(Path::new(path)) {
            log(&format!("{path} cannot be loaded: {error}"));
        }
        let _ = fs::remove_file(path);
    }
}

fn load(path: &Path) -> io::Result<()> {
    match finit_module(File::open(path)?, c"", 0) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
