//! Processes of the base that serve devices of nodes.

use std::fs;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::insula_command::wait_for;
use crate::base::Finding;

/// Serves disks.
pub(crate) const STORAGE_DAEMON: &str = "qemu-storage-daemon";
/// Serves folders.
pub(crate) const VIRTIOFSD: &str = "virtiofsd";

/// Processes of that name with the text in their command line.
pub(crate) fn find(name: &str, text: &str) -> Result<Vec<Pid>, Finding> {
    let found = Command::new("pidof").arg(name).output()?;
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    let ids = found.split_whitespace().filter_map(|id| id.parse().ok());
    let has_text = |id: &i32| {
        // It may have ended meanwhile.
        let words = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains(text)
    };
    Ok(ids.filter(has_text).map(Pid::from_raw).collect())
}

/// Kills them, as soon as there are any.
pub(crate) fn kill_all(name: &str, text: &str) -> Result<(), Finding> {
    let servers = wait_for(&format!("a {name}"), || {
        let servers = find(name, text)?;
        Ok((!servers.is_empty()).then_some(servers))
    })?;
    for server in servers {
        // Of two, one may end with the other.
        let _ = kill(server, Signal::SIGKILL);
    }
    Ok(())
}
