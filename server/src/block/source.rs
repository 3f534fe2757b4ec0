//! What a server's block device is, as its option names it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use super::{BlockDevice, DeviceError, FileDevice, ServedDevice};
use crate::nvme::{self, Completions, Limits, Nvme, REGISTER_BYTES};
use crate::pci::{self, AddressError, ClaimedFunction, PciAddress};
use crate::{Client, Error};

/// What `--device` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file or block device of the base.
    File(PathBuf),
    /// An NVMe controller that the node was given.
    Nvme(PciAddress),
    /// What the block server of that name has.
    Server(String),
}

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A file's, or a server's.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// The function cannot be had.
    #[error("{0}")]
    Function(#[from] pci::Error),
    /// The controller does not start.
    #[error("{0}")]
    Nvme(#[from] nvme::Error),
    /// There is no server.
    #[error("{0}")]
    Server(#[from] Error),
}

/// What begins the address of a controller, and the name of a server.
const NVME: &str = "nvme:";
const SERVER: &str = "server:";
/// Time that a server has to come, and the interval of looks.
const SERVER_TIMEOUT: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_millis(20);

impl FromStr for Source {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(name) = text.strip_prefix(SERVER) {
            return Ok(Self::Server(name.to_owned()));
        }
        match text.strip_prefix(NVME) {
            Some(address) => address.parse().map(Self::Nvme),
            None => Ok(Self::File(text.into())),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(formatter),
            Self::Nvme(address) => write!(formatter, "{NVME}{address}"),
            Self::Server(name) => write!(formatter, "{SERVER}{name}"),
        }
    }
}

impl Source {
    /// Opens the device. Waits for a server that does not run yet. `completions`: of an NVMe controller.
    ///
    /// # Errors
    /// [`SourceError`].
    pub fn open(
        &self,
        completions: Completions,
    ) -> Result<Box<dyn BlockDevice + Send>, SourceError> {
        match self {
            Self::File(path) => Ok(Box::new(FileDevice::open(path)?)),
            Self::Nvme(address) => {
                let function = ClaimedFunction::claim(*address, 0, REGISTER_BYTES)?;
                let nvme = Nvme::start(function, Limits::default(), completions)?;
                Ok(Box::new(nvme))
            }
            Self::Server(name) => Ok(Box::new(ServedDevice::open(server(name)?)?)),
        }
    }
}

/// A server of that name, once there is one.
fn server(name: &str) -> Result<Client, Error> {
    let began = Instant::now();
    loop {
        match Client::open(name) {
            Err(Error::NoServer) if began.elapsed() < SERVER_TIMEOUT => thread::sleep(INTERVAL),
            opened => return opened,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_is_named_by_its_address() {
        let nvme: Source = "nvme:01:00.0".parse().unwrap();
        assert_eq!(nvme.to_string(), "nvme:0000:01:00.0");
        assert!("nvme:disk.img".parse::<Source>().is_err());
        let server: Source = "server:block".parse().unwrap();
        assert_eq!(server, Source::Server("block".into()));
        assert_eq!(server.to_string(), "server:block");
        let file = "disk:01:00.0".parse();
        assert_eq!(file, Ok(Source::File("disk:01:00.0".into())));
    }

    #[test]
    fn a_linux_gives_no_controllers_and_has_no_servers() {
        for source in ["nvme:01:00.0", "server:block"] {
            let source: Source = source.parse().unwrap();
            let refused = source
                .open(Completions::Interrupts)
                .err()
                .map(|error| error.to_string());
            assert!(refused.is_some_and(|text| text.contains("lightweight kernel")));
        }
    }
}
