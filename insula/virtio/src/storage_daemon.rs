//! QEMU's storage daemon, which serves a file or block device of the base to a node.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::Command;

use insula_node::attachment::{DiskFile, find_storage_daemon};
use insula_privilege::Sandbox;
use serde_json::json;

/// Name of the disk among the daemon's objects.
const DISK: &str = "disk";

/// The command of a daemon that serves a disk; its standard input is the listening socket.
pub(super) fn command(disk: &DiskFile) -> io::Result<Command> {
    let program = find_storage_daemon().map_err(io::Error::other)?;
    let is_device = match disk.is_device {
        Some(is_device) => is_device,
        None => fs::metadata(&disk.path)?.file_type().is_block_device(),
    };
    let sandbox = Sandbox::disk_server(&program, &disk.path, disk.read_only);
    let mut command = Command::new(program);
    sandbox.map_err(io::Error::other)?.apply_to(&mut command);
    command
        .arg("--blockdev")
        .arg(node(&disk.path, disk.read_only, is_device)?)
        .arg("--export")
        .arg(export(disk.read_only));
    Ok(command)
}

/// The daemon's description of the file, in JSON so that it can hold any name.
fn node(path: &Path, read_only: bool, is_device: bool) -> io::Result<String> {
    let path = path.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
    let driver = if is_device { "host_device" } else { "file" };
    Ok(json!({
        "driver": driver,
        "node-name": DISK,
        "filename": path,
        "read-only": read_only,
        "discard": "unmap",
    })
    .to_string())
}

/// The daemon's description of the device, whose socket is standard input.
fn export(read_only: bool) -> String {
    json!({
        "type": "vhost-user-blk",
        "id": DISK,
        "node-name": DISK,
        "writable": !read_only,
        "addr": { "type": "fd", "str": "0" },
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_can_be_described() {
        let description = node(Path::new("/a,\"b\""), true, false).unwrap();
        let description: serde_json::Value = serde_json::from_str(&description).unwrap();
        assert_eq!(description["filename"], "/a,\"b\"");
        assert_eq!(description["read-only"], true);
    }
}
