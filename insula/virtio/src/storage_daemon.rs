//! QEMU's storage daemon, which serves a file or block device of the base to a node, or an overlay over
//! a file.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::Command;

use insula_node::attachment::{DiskFile, find_storage_daemon};
use insula_privilege::{DiskAccess, Sandbox};
use serde_json::{Value, json};

/// Name of the disk among the daemon's objects.
const DISK: &str = "disk";

/// The command of a daemon that serves a disk; its standard input is the listening socket.
pub(super) fn command(disk: &DiskFile) -> io::Result<Command> {
    let program = find_storage_daemon().map_err(io::Error::other)?;
    let is_device = match disk.is_device {
        Some(is_device) => is_device,
        None => fs::metadata(&disk.path)?.file_type().is_block_device(),
    };
    let sandbox = Sandbox::disk_server(
        &program,
        DiskAccess {
            path: &disk.path,
            read_only: disk.read_only,
            base: disk.base.as_deref(),
        },
    );
    let mut command = Command::new(program);
    sandbox.map_err(io::Error::other)?.apply_to(&mut command);
    command
        .arg("--blockdev")
        .arg(node(disk, is_device)?.to_string())
        .arg("--export")
        .arg(export(disk));
    Ok(command)
}

/// The daemon's description of the disk, in JSON so that it can hold any name.
fn node(disk: &DiskFile, is_device: bool) -> io::Result<Value> {
    let driver = if is_device { "host_device" } else { "file" };
    let own = protocol(driver, &disk.path, disk.read_only)?;
    let mut node = match &disk.base {
        None => own,
        Some(base) => json!({
            "driver": "qcow2",
            "file": without_flush(own),
            "backing": { "driver": "raw", "read-only": true, "file": protocol("file", base, true)? },
            "read-only": disk.read_only,
            "discard": "unmap",
        }),
    };
    node["node-name"] = json!(DISK);
    Ok(node)
}

/// Its description of a file or block device.
fn protocol(driver: &str, path: &Path, read_only: bool) -> io::Result<Value> {
    let path = path.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
    Ok(json!({
        "driver": driver,
        "filename": path,
        "read-only": read_only,
        "discard": "unmap",
    }))
}

/// A file of which nothing is left when the base ends: it need not be on the base's disk.
fn without_flush(mut file: Value) -> Value {
    file["cache"] = json!({ "no-flush": true });
    file
}

/// The daemon's description of the device, whose socket is standard input. Of an overlay, the tables that
/// tell where a block is are written with each block: another daemon must find what this one, which may
/// be killed, has reported as written.
fn export(disk: &DiskFile) -> String {
    json!({
        "type": "vhost-user-blk",
        "id": DISK,
        "node-name": DISK,
        "writable": !disk.read_only,
        "writethrough": disk.base.is_some(),
        "addr": { "type": "fd", "str": "0" },
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(path: &str, base: Option<&str>) -> DiskFile {
        DiskFile {
            path: path.into(),
            read_only: base.is_none(),
            is_device: Some(false),
            base: base.map(Into::into),
        }
    }

    #[test]
    fn any_name_can_be_described() {
        let description = node(&disk("/a,\"b\"", None), false).unwrap();
        assert_eq!(description["filename"], "/a,\"b\"");
        assert_eq!(description["read-only"], true);
        assert_eq!(description["node-name"], DISK);
    }

    #[test]
    fn the_file_below_an_overlay_is_only_read() {
        let description = node(&disk("/own", Some("/below")), false).unwrap();
        assert_eq!(description["node-name"], DISK);
        assert_eq!(description["file"]["filename"], "/own");
        assert_eq!(description["file"]["read-only"], false);
        assert_eq!(description["backing"]["file"]["filename"], "/below");
        assert_eq!(description["backing"]["file"]["read-only"], true);
    }
}
