//! Child processes with fewer privileges than their parent.

#![allow(unsafe_code, reason = "code between fork and exec is unsafe")]

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use insula_base::error::Error;
use landlock::RulesetCreated;
use nix::libc;
use nix::unistd::setsid;
use rustix::thread::CapabilitySet;
use seccompiler::BpfProgram;

use super::{calls, capabilities, drop_privileges, failed, files};

/// Restrictions of a device server. Built by the parent, so that the child need not allocate to
/// enter it.
pub struct Sandbox {
    kept: CapabilitySet,
    refused: BpfProgram,
    files: Option<RulesetCreated>,
}

impl Sandbox {
    /// For `virtiofsd`, which restricts its access to files itself.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn file_server() -> Result<Self, Error> {
        Ok(Self {
            kept: capabilities::FILE_SERVER,
            refused: calls::filter(calls::REFUSED)?,
            files: None,
        })
    }

    /// For a server of this file or block device.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn disk_server(program: &Path, disk: &Path, read_only: bool) -> Result<Self, Error> {
        let refused = [calls::REFUSED, calls::REFUSED_TO_DISK_SERVER].concat();
        Ok(Self {
            kept: capabilities::DISK_SERVER,
            refused: calls::filter(&refused)?,
            files: Some(files::only_disk(program, disk, read_only)?),
        })
    }

    /// Makes the command's child enter the sandbox before it executes the program.
    pub fn apply_to(mut self, command: &mut Command) {
        // SAFETY: between fork and exec `enter` only makes system calls: nothing is allocated
        // unless it fails, and no lock is taken that a thread of the parent may hold.
        unsafe { command.pre_exec(move || self.enter().map_err(os_error)) };
    }

    fn enter(&mut self) -> Result<(), Error> {
        if let Some(rules) = self.files.take() {
            rules.restrict_self().map_err(failed(files::GIVING_UP))?;
        }
        drop_privileges(self.kept, &self.refused)
    }
}

/// Makes the command's child a session leader, so that no signals of a terminal reach it, without
/// descriptors except the standard ones.
pub fn detach(command: &mut Command) {
    // SAFETY: only system calls are made.
    unsafe { command.pre_exec(isolate) };
}

fn isolate() -> io::Result<()> {
    setsid()?;
    let first = libc::STDERR_FILENO + 1;
    // SAFETY: descriptors are only marked to be closed by exec, which follows.
    let closed = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    match closed {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The error number, which is all that a child can report to its parent.
fn os_error(error: Error) -> io::Error {
    let cause = error.cause().and_then(io::Error::raw_os_error);
    let cause = cause.map(io::Error::from_raw_os_error);
    cause.unwrap_or_else(|| io::ErrorKind::PermissionDenied.into())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::{Child, Stdio};

    use super::*;

    /// `cat` in a sandbox, waiting for input.
    fn cat(sandbox: Sandbox) -> Child {
        let mut command = Command::new("/bin/cat");
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        sandbox.apply_to(&mut command);
        command.spawn().unwrap()
    }

    fn status(child: &Child, key: &str) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap().trim_start_matches(':').trim().to_owned()
    }

    fn end(mut child: Child) {
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn a_disk_server_has_few_privileges() {
        let disk = tempfile::NamedTempFile::new().unwrap();
        let sandbox = Sandbox::disk_server(Path::new("/bin/cat"), disk.path(), false).unwrap();
        let child = cat(sandbox);
        assert_eq!(status(&child, "NoNewPrivs"), "1");
        assert_eq!(status(&child, "Seccomp"), "2");
        for set in ["CapEff", "CapPrm"] {
            let has = u64::from_str_radix(&status(&child, set), 16).unwrap();
            assert_eq!(has & !capabilities::DISK_SERVER.bits(), 0, "{set} {has:x}");
        }
        end(child);
    }

    #[test]
    fn a_file_server_has_no_power_over_the_kernel() {
        let child = cat(Sandbox::file_server().unwrap());
        assert_eq!(status(&child, "NoNewPrivs"), "1");
        assert_eq!(status(&child, "Seccomp"), "2");
        let has = u64::from_str_radix(&status(&child, "CapPrm"), 16).unwrap();
        assert_eq!(has & !capabilities::FILE_SERVER.bits(), 0, "{has:x}");
        end(child);
    }

    /// Runs `sh -c` as a disk server; returns whether the script succeeds.
    fn succeeds(disk: &Path, read_only: bool, script: &str) -> bool {
        let shell = fs::canonicalize("/bin/sh").unwrap();
        let mut command = Command::new(&shell);
        command.args(["-c", script]).stderr(Stdio::null());
        let sandbox = Sandbox::disk_server(&shell, disk, read_only).unwrap();
        sandbox.apply_to(&mut command);
        command.status().unwrap().success()
    }

    #[test]
    fn a_disk_server_accesses_its_disk_only() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk");
        let other = folder.path().join("other");
        fs::write(&disk, "disk").unwrap();
        fs::write(&other, "other").unwrap();
        let read = |path: &Path| format!("exec 3<{}", path.display());
        let write = |path: &Path| format!("exec 3<>{}", path.display());
        assert!(succeeds(&disk, false, &read(&disk)));
        assert!(succeeds(&disk, false, &write(&disk)));
        assert!(!succeeds(&disk, true, &write(&disk)) || !has_landlock());
        assert!(!succeeds(&disk, false, &read(&other)) || !has_landlock());
        assert!(!succeeds(&disk, false, &write(&other)) || !has_landlock());
    }

    /// Whether this machine's kernel has Landlock. Tried in a thread, which alone is restricted.
    fn has_landlock() -> bool {
        let tried = std::thread::spawn(|| {
            let rules = files::only_disk(Path::new("/bin/sh"), Path::new("/dev/null"), true);
            rules.unwrap().restrict_self().unwrap().ruleset
        });
        tried.join().unwrap() != landlock::RulesetStatus::NotEnforced
    }

    #[test]
    fn refused_calls_fail_and_others_do_not() {
        let disk = tempfile::NamedTempFile::new().unwrap();
        // unshare(1) fails by that call only.
        let script = "unshare --fork --user true";
        assert!(!succeeds(disk.path(), false, script));
        assert!(succeeds(disk.path(), false, "true"));
    }

    #[test]
    fn a_detached_child_has_a_session_and_no_inherited_descriptors() {
        use std::os::fd::AsRawFd;
        let inherited = fs::File::open("/dev/null").unwrap();
        rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
        let number = inherited.as_raw_fd();
        let mut command = Command::new("/bin/sh");
        let test = format!("[ ! -e /proc/self/fd/{number} ] && [ $(ps -o sid= -p $$) = $$ ]");
        command.args(["-c", &test]);
        detach(&mut command);
        assert!(command.status().unwrap().success());
    }
}
