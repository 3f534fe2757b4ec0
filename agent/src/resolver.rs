//! How the node's programs resolve names.

use std::fs;
use std::io;

use insula_agent::options::{Resolver, Root};

use crate::log::log;

const FILE: &str = "/etc/resolv.conf";

/// Has programs use the base's name servers, on roots whose changes stay in the node's memory. A folder or a
/// disk has a file of its own.
pub(crate) fn configure(root: Option<Root>, resolver: &Resolver) {
    let is_own = matches!(root, Some(Root::Files | Root::Disk));
    if resolver.nameservers.is_empty() || is_own {
        return;
    }
    if let Err(error) = write(resolver) {
        log(&format!("{FILE}: {error}"));
    }
}

fn write(resolver: &Resolver) -> io::Result<()> {
    fs::create_dir_all("/etc")?;
    // It may be a link to a file that only the base has.
    match fs::remove_file(FILE) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::write(FILE, resolver.to_string()),
    }
}
