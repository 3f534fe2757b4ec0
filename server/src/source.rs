//! What a server's block device is.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use insula_server::block::{BlockDevice, FileDevice};
use insula_server::nvme::{self, Limits, Nvme, REGISTER_BYTES};
use insula_server::pci::{self, AddressError, ClaimedFunction, PciAddress};

/// What `--device` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A file or block device of the base.
    File(PathBuf),
    /// An NVMe controller that the node was given.
    Nvme(PciAddress),
}

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0}")]
    File(#[from] insula_server::block::DeviceError),
    #[error("{0}")]
    Function(#[from] pci::Error),
    #[error("{0}")]
    Nvme(#[from] nvme::Error),
}

/// What begins the address of a controller.
const NVME: &str = "nvme:";

impl FromStr for Source {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
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
        }
    }
}

impl Source {
    /// Opens the device.
    ///
    /// # Errors
    /// [`Error`].
    pub(crate) fn open(&self) -> Result<Box<dyn BlockDevice>, Error> {
        match self {
            Self::File(path) => Ok(Box::new(FileDevice::open(path)?)),
            Self::Nvme(address) => {
                let function = ClaimedFunction::claim(*address, 0, REGISTER_BYTES)?;
                Ok(Box::new(Nvme::start(function, Limits::default())?))
            }
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
        let file = "disk:01:00.0".parse();
        assert_eq!(file, Ok(Source::File("disk:01:00.0".into())));
    }

    #[test]
    fn a_linux_gives_no_controllers() {
        let source: Source = "nvme:01:00.0".parse().unwrap();
        let refused = source.open().err().map(|error| error.to_string());
        assert!(refused.is_some_and(|text| text.contains("lightweight kernel")));
    }
}
