//! Opening the device and agreeing on a revision.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use insula_abi as abi;
use nix::errno::Errno;

use super::{CallError, Driver, ioctl};

/// The module's device.
pub const DEVICE: &str = "/dev/insula";

/// Why the module cannot be used. Nothing has been changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The device is missing.
    #[error(
        "the module insula.ko is not loaded ({DEVICE} is missing); nothing was touched\n\
         load it with `sudo modprobe insula`; `insula machine check` shows whether it can be"
    )]
    NoModule,
    /// The user may not open the device.
    #[error(
        "no privilege to open {DEVICE}; nothing was touched\n\
         run the same command as root, for example with `sudo`"
    )]
    NoPrivilege,
    /// The module has another revision of the interface.
    #[error(
        "the loaded module speaks revision {module} of the interface, this command revision \
         {command}; nothing was touched\n\
         install module and command from the same version, then `sudo rmmod insula` and \
         `sudo modprobe insula`"
    )]
    OtherRevision {
        /// The module's revision, or "unknown".
        module: String,
        /// This command's.
        command: u32,
    },
    /// Anything else.
    #[error("{DEVICE} cannot be opened: {0}; nothing was touched")]
    Device(#[source] io::Error),
    /// The module refused the handshake.
    #[error("the handshake with {DEVICE} failed: {0}; nothing was touched")]
    Greeting(#[source] CallError),
}

impl Driver {
    /// Opens the device and agrees with the module on a revision.
    ///
    /// # Errors
    /// [`OpenError`], each with a hint.
    pub fn open() -> Result<Self, OpenError> {
        Self::open_at(Path::new(DEVICE))
    }

    fn open_at(path: &Path) -> Result<Self, OpenError> {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let file = opened.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => OpenError::NoModule,
            io::ErrorKind::PermissionDenied => OpenError::NoPrivilege,
            _ if error.raw_os_error() == Some(Errno::ENXIO as i32) => OpenError::NoModule,
            _ if error.raw_os_error() == Some(Errno::ENODEV as i32) => OpenError::NoModule,
            _ => OpenError::Device(error),
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
fn agree(answer: Result<(), CallError>, greeting: &abi::Hello) -> Result<(), OpenError> {
    let other = |module: String| OpenError::OtherRevision {
        module,
        command: abi::REVISION,
    };
    match answer {
        Err(error) if error.errno == Errno::EACCES || error.errno == Errno::EPERM => {
            Err(OpenError::NoPrivilege)
        }
        Err(error) if error.errno == Errno::ENOTTY => Err(other("unknown".into())),
        _ if greeting.magic != abi::MAGIC => Err(other("unknown".into())),
        _ if greeting.revision != abi::REVISION => Err(other(greeting.revision.to_string())),
        Err(error) if error.errno == Errno::EPROTO => Err(other("unknown".into())),
        Err(error) => Err(OpenError::Greeting(error)),
        Ok(()) => Ok(()),
    }
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
        assert!(matches!(
            Driver::open_at(Path::new("/dev/null")),
            Err(OpenError::OtherRevision { .. })
        ));
    }

    #[test]
    fn no_privilege_and_no_module() {
        let error = agree(refused(Errno::EPERM), &abi::Hello::default()).unwrap_err();
        assert!(matches!(error, OpenError::NoPrivilege));
        let missing = Driver::open_at(Path::new("/nonexistent/insula")).unwrap_err();
        assert!(matches!(missing, OpenError::NoModule));
    }
}
