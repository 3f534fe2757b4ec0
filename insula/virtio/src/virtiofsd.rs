//! virtiofsd, which serves a folder of the base to a node: the Rust one, or QEMU's where that is
//! not available.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Command;

use insula_node::attachment::find_virtiofsd;
use insula_privilege::Sandbox;

use super::files::Share;

/// The command that serves a folder to one connection to its standard input, and exits with it.
pub(super) fn command(shared: &Share) -> io::Result<Command> {
    let folder = &shared.path;
    let program = find_virtiofsd().map_err(io::Error::other)?;
    let mut source = OsString::from("source=");
    source.push(folder);
    let mut command = Command::new(program);
    let read_only = shared.read_only.then_some(folder.as_path());
    let sandbox = Sandbox::file_server(read_only).map_err(io::Error::other)?;
    sandbox.apply_to(&mut command);
    // Both implementations know these options.
    command
        .arg("--fd=0")
        .arg("-o")
        .arg(source)
        .args(["-o", "cache=auto"]);
    // Its default, pivot_root(), fails for the present root.
    if folder == Path::new("/") {
        command.args(["-o", "sandbox=chroot"]);
    }
    Ok(command)
}
