//! Child processes with fewer privileges than their parent.

#![allow(unsafe_code, reason = "code between fork and exec is unsafe")]

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use insula_base::error::Error;
use landlock::RulesetCreated;
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{getpid, getppid, setsid};
use rustix::thread::CapabilitySet;
use seccompiler::BpfProgram;

use super::{DiskAccess, calls, capabilities, drop_privileges, failed, files};

/// Restrictions of a device server. Built by the parent, so that the child need not allocate to
/// enter it.
pub struct Sandbox {
    kept: CapabilitySet,
    refused: BpfProgram,
    files: Option<RulesetCreated>,
    /// A folder that is only read.
    read_only: Option<CString>,
}

impl Sandbox {
    /// For `virtiofsd`, which restricts its access to files itself, but has no option to only read them:
    /// it can write nothing in the folder `read_only`, if one is given.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn file_server(read_only: Option<&Path>) -> Result<Self, Error> {
        let folder = read_only.map(|path| CString::new(path.as_os_str().as_bytes()));
        Ok(Self {
            kept: capabilities::FILE_SERVER,
            refused: calls::filter(calls::REFUSED)?,
            files: None,
            read_only: folder.transpose().map_err(failed(files::GIVING_UP))?,
        })
    }

    /// For a server of this disk.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn disk_server(program: &Path, disk: DiskAccess<'_>) -> Result<Self, Error> {
        let refused = [calls::REFUSED, calls::REFUSED_TO_DISK_SERVER].concat();
        Ok(Self {
            kept: capabilities::DISK_SERVER,
            refused: calls::filter(&refused)?,
            files: Some(files::only_disk(program, disk)?),
            read_only: None,
        })
    }

    /// For a watcher of a node, which reads the node's memory by its descriptor, and files of kernels.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn watcher() -> Result<Self, Error> {
        let refused = [calls::REFUSED, calls::REFUSED_TO_DISK_SERVER].concat();
        Ok(Self {
            kept: CapabilitySet::DAC_READ_SEARCH,
            refused: calls::filter(&refused)?,
            files: None,
            read_only: None,
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
        if let Some(folder) = &self.read_only {
            see_read_only(folder).map_err(failed(files::GIVING_UP))?;
        }
        drop_privileges(self.kept, &self.refused)
    }
}

/// Gives this process a view of the file systems of its own, in which a folder, and what is mounted below it,
/// can only be read (`mount_setattr(2)`).
fn see_read_only(folder: &CStr) -> io::Result<()> {
    const ROOT: &CStr = c"/";
    let nothing = None::<&CStr>;
    unshare(CloneFlags::CLONE_NEWNS)?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(nothing, ROOT, nothing, private, nothing)?;
    // A mount can be made read-only, a folder of one cannot.
    if folder != ROOT {
        let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
        mount(Some(folder), folder, nothing, bind, nothing)?;
    }
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the path ends with NUL, and the structure has the size that is given.
    let changed = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            folder.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    match changed {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the kernel kill the command's child when this thread ends.
pub fn die_with_parent(command: &mut Command) {
    let parent = getpid();
    let prepare = move || {
        set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have exited before prctl() took effect.
        match getppid() == parent {
            true => Ok(()),
            false => Err(io::ErrorKind::BrokenPipe.into()),
        }
    };
    // SAFETY: only system calls are made.
    unsafe { command.pre_exec(prepare) };
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

    fn access(path: &Path, read_only: bool) -> DiskAccess<'_> {
        DiskAccess {
            path,
            read_only,
            base: None,
        }
    }

    fn end(mut child: Child) {
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn a_disk_server_has_few_privileges() {
        let disk = tempfile::NamedTempFile::new().unwrap();
        let sandbox =
            Sandbox::disk_server(Path::new("/bin/cat"), access(disk.path(), false)).unwrap();
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
        let child = cat(Sandbox::file_server(None).unwrap());
        assert_eq!(status(&child, "NoNewPrivs"), "1");
        assert_eq!(status(&child, "Seccomp"), "2");
        let has = u64::from_str_radix(&status(&child, "CapPrm"), 16).unwrap();
        assert_eq!(has & !capabilities::FILE_SERVER.bits(), 0, "{has:x}");
        end(child);
    }

    #[test]
    fn a_file_server_may_have_to_leave_a_folder_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let writes = |read_only| {
            let mut command = Command::new("/bin/sh");
            // Exits with 9 if it cannot even read.
            let script = format!("cat {0} || exit 9; echo x > {0}", file.display());
            command.args(["-c", &script]).stderr(Stdio::null());
            let sandbox = Sandbox::file_server(read_only).unwrap();
            sandbox.apply_to(&mut command);
            match command.status() {
                // It needs the right to mount, which not everybody has who runs tests.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
                status => Some(match status.unwrap().code() {
                    Some(0) => true,
                    Some(9) | None => panic!("the folder cannot be read"),
                    Some(_) => false,
                }),
            }
        };
        assert_eq!(writes(None), Some(true));
        assert_ne!(writes(Some(folder.path())), Some(true));
        assert_ne!(writes(Some(Path::new("/"))), Some(true));
        // Only that process saw it so.
        fs::write(&file, "y").unwrap();
    }

    #[test]
    fn a_watcher_has_few_privileges_and_ends_with_its_parent() {
        let thread = std::thread::spawn(|| {
            let mut command = Command::new("/bin/cat");
            command.stdin(Stdio::piped()).stdout(Stdio::null());
            die_with_parent(&mut command);
            Sandbox::watcher().unwrap().apply_to(&mut command);
            let child = command.spawn().unwrap();
            assert_eq!(status(&child, "Seccomp"), "2");
            let has = u64::from_str_radix(&status(&child, "CapPrm"), 16).unwrap();
            assert_eq!(has & !CapabilitySet::DAC_READ_SEARCH.bits(), 0, "{has:x}");
            child
        });
        // The thread ends, and with it the child.
        let mut child = thread.join().unwrap();
        assert!(!child.wait().unwrap().success());
    }

    /// Runs `sh -c` as a disk server; returns whether the script succeeds.
    fn succeeds(disk: DiskAccess<'_>, script: &str) -> bool {
        let shell = fs::canonicalize("/bin/sh").unwrap();
        let mut command = Command::new(&shell);
        command.args(["-c", script]).stderr(Stdio::null());
        let sandbox = Sandbox::disk_server(&shell, disk).unwrap();
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
        let writable = access(&disk, false);
        assert!(succeeds(writable, &read(&disk)));
        assert!(succeeds(writable, &write(&disk)));
        let above_other = DiskAccess {
            base: Some(&other),
            ..writable
        };
        assert!(succeeds(above_other, &read(&other)));
        if has_landlock() {
            assert!(!succeeds(access(&disk, true), &write(&disk)));
            assert!(!succeeds(writable, &read(&other)));
            assert!(!succeeds(writable, &write(&other)));
            assert!(!succeeds(above_other, &write(&other)));
        }
    }

    /// Whether this machine's kernel has Landlock. Tried in a thread, which alone is restricted.
    fn has_landlock() -> bool {
        let tried = std::thread::spawn(|| {
            let rules =
                files::only_disk(Path::new("/bin/sh"), access(Path::new("/dev/null"), true));
            rules.unwrap().restrict_self().unwrap().ruleset
        });
        tried.join().unwrap() != landlock::RulesetStatus::NotEnforced
    }

    #[test]
    fn refused_calls_fail_and_others_do_not() {
        let disk = tempfile::NamedTempFile::new().unwrap();
        // unshare(1) fails by that call only.
        let script = "unshare --fork --user true";
        assert!(!succeeds(access(disk.path(), false), script));
        assert!(succeeds(access(disk.path(), false), "true"));
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
