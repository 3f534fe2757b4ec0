//! Loading the modules that the image brings.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::system::finit_module;

use crate::say::say;

/// Their files, a line each, in the order in which they need each other.
const LIST: &str = "/lib/insula/modules";

/// Loads them. Each file is removed, since it takes memory that is the node's to use. A module that
/// cannot be loaded is told of: the node may do without.
pub(crate) fn load_all() {
    // An image without modules has a kernel with everything built in.
    for path in fs::read_to_string(LIST).unwrap_or_default().lines() {
        if let Err(error) = load(Path::new(path)) {
            say(&format!("{path} cannot be loaded: {error}"));
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
