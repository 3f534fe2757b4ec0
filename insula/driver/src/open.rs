//! Opening the device and agreeing on a revision.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use insula_abi as abi;
use insula_base::error::{Error, Kind};
use nix::errno::Errno;

use super::{CallError, Driver, ioctl};

/// The module's device.
pub const DEVICE: &str = "/dev/insula";

impl Driver {
    /// Opens the device and agrees with the module on a revision.
    ///
    /// # Errors
    /// [`Kind::NoModule`], [`Kind::OtherRevision`], [`Kind::NoPrivilege`] or another; each but the
    /// last with a hint.
    pub fn open() -> Result<Self, Error> {
        Self::open_at(Path::new(DEVICE))
    }

    fn open_at(path: &Path) -> Result<Self, Error> {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let file = opened.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => no_module(),
            io::ErrorKind::PermissionDenied => no_privilege(),
            _ if error.raw_os_error() == Some(Errno::ENXIO as i32) => no_module(),
            _ if error.raw_os_error() == Some(Errno::ENODEV as i32) => no_module(),
            _ => Error::new(format!("{DEVICE} cannot be opened"))
                .because(error)
                .untouched(),
        })?;
        let mut greeting = abi::Hello::default();
        let answer = ioctl::hello(file.as_fd(), &mut greeting);
        agree(answer, &greeting)?;
        Ok(Self { fd: file.into() })
    }
}

/// Evaluates the module's reply to `Hello`.
///
/// A module of another revision replies with its own number, with success or `EPROTO`; one whose
/// `Hello` has another size does not know the request.
fn agree(answer: Result<(), CallError>, greeting: &abi::Hello) -> Result<(), Error> {
    match answer {
        Err(error) if error.errno == Errno::EACCES || error.errno == Errno::EPERM => {
            Err(no_privilege())
        }
        Err(error) if error.errno == Errno::ENOTTY => Err(other_revision(None)),
        _ if greeting.magic != abi::MAGIC => Err(other_revision(None)),
        _ if greeting.revision != abi::REVISION => Err(other_revision(Some(greeting.revision))),
        Err(error) if error.errno == Errno::EPROTO => Err(other_revision(None)),
        Err(error) => Err(Error::new(format!("the handshake with {DEVICE} failed"))
            .because(error)
            .untouched()),
        Ok(()) => Ok(()),
    }
}

fn no_module() -> Error {
    let what = format!("the module insula.ko is not loaded ({DEVICE} is missing)");
    Error::of(Kind::NoModule, what)
        .untouched()
        .hint("load it with `sudo modprobe insula`; `insula machine check` shows whether it can be")
}

fn no_privilege() -> Error {
    Error::of(Kind::NoPrivilege, format!("no privilege to open {DEVICE}"))
        .untouched()
        .hint("run the same command as root, for example with `sudo`")
}

/// The error for a module of that revision, if it is known.
fn other_revision(module: Option<u32>) -> Error {
    let what = format!(
        "the loaded module speaks revision {} of the interface, this command revision {}",
        module.map_or_else(|| "unknown".into(), |revision| revision.to_string()),
        abi::REVISION,
    );
    Error::of(Kind::OtherRevision(module), what)
        .untouched()
        .hint(
            "install module and command from the same version, then `sudo rmmod insula` and \
             `sudo modprobe insula`",
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(errno: Errno) -> Result<(), CallError> {
        Err(CallError {
            call: "INSULA_HELLO",
            errno,
        })
    }

    #[test]
    fn same_revision_is_agreed() {
        assert!(agree(Ok(()), &abi::Hello::default()).is_ok());
    }

    #[test]
    fn another_revision_is_reported_by_number() {
        let greeting = abi::Hello {
            revision: 7,
            ..Default::default()
        };
        for answer in [Ok(()), refused(Errno::EPROTO)] {
            let error = agree(answer, &greeting).unwrap_err();
            assert!(error.to_string().contains("speaks revision 7 "), "{error}");
        }
    }

    #[test]
    fn another_device_has_an_unknown_revision() {
        let error = agree(refused(Errno::ENOTTY), &abi::Hello::default()).unwrap_err();
        assert!(error.to_string().contains("revision unknown"), "{error}");
        let null = Driver::open_at(Path::new("/dev/null")).unwrap_err();
        assert_eq!(null.kind, Kind::OtherRevision(None));
    }

    #[test]
    fn no_privilege_and_no_module() {
        let error = agree(refused(Errno::EPERM), &abi::Hello::default()).unwrap_err();
        assert_eq!(error.kind, Kind::NoPrivilege);
        let missing = Driver::open_at(Path::new("/nonexistent/insula")).unwrap_err();
        assert_eq!(missing.kind, Kind::NoModule);
    }
}
