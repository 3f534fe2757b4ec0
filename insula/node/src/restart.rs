//! Restarting a stopped node: same name, cores and memory, from its image as it is now.

use insula_abi as abi;
use insula_base::root::Root;
use insula_boot::LayoutError;
use insula_driver::name::{self, Name};
use insula_driver::{CallError, Driver, DriverError};
use insula_image::{self as image, Bootable, Files, FilesError, LoadError};
use nix::errno::Errno;

use super::setup::{Setup, start_boot_core, write_layout};
use super::{Forbidden, Handle, NodeRecord, RestartRecord};
use crate::device::{self, DeviceError, PciAddress, Selected};
use crate::policy::History;

/// Why a node was not restarted. It is stopped, as before.
#[derive(Debug, thiserror::Error)]
pub enum RestartError {
    /// The node's record has another format.
    #[error(
        "the record of the node '{0}' cannot be read; it was left as it is\n\
         it was started by another version of insula: use that one"
    )]
    NoRecord(String),
    /// Its image was not found.
    #[error("the node '{name}' cannot be restarted: {source}")]
    Image {
        /// The node.
        name: String,
        /// Why.
        source: image::FindError,
    },
    /// Its files are not valid any more.
    #[error("the node '{name}' cannot be restarted: {source}")]
    Files {
        /// The node.
        name: String,
        /// Why.
        source: FilesError,
    },
    /// A device that it had is missing.
    #[error("the node '{name}' cannot be restarted: {source}")]
    Device {
        /// The node.
        name: String,
        /// Why.
        source: DeviceError,
    },
    /// It cannot be laid out, as when its image has changed.
    #[error(
        "the node '{name}' cannot be laid out again: {source}; it was left as it is\n\
         its image may have changed: remove the node and start another"
    )]
    Layout {
        /// The node.
        name: String,
        /// Why.
        source: LayoutError,
    },
    /// Its record is too large.
    #[error("the record of the node '{name}' is too large ({size} bytes); it was left as it is")]
    Record {
        /// The node.
        name: String,
        /// Size of the record in bytes.
        size: usize,
    },
    /// Its user has stopped it.
    #[error("the node '{0}' was stopped by its user and is not restarted")]
    Retired(String),
    /// Another process is starting it, or has.
    #[error(
        "the node '{0}' cannot be restarted: it is not stopped; it was left as it is\n\
         another command may be starting it: `insula ps` shows its state"
    )]
    NotStopped(String),
    /// One of its cores is in use.
    #[error(
        "the node '{name}' cannot be restarted: it had core {cpu}, which {owner} now; it was left \
         as it is\n\
         `insula machine info` shows the owner of each core: stop that node, or remove this one \
         and start it on other cores"
    )]
    CoreTaken {
        /// The node.
        name: String,
        /// The core's number on the base.
        cpu: u32,
        /// Its owner, as a predicate.
        owner: String,
    },
    /// Its memory, or a device, is in use.
    #[error(
        "the node '{0}' cannot be restarted: a program of this system is still reading or \
         writing its memory; it was left as it is\n\
         try again in a moment, when that has ended"
    )]
    MemoryInUse(String),
    /// Its kernel or initrd could not be loaded.
    #[error("the node '{name}' could not be loaded again: {source}; it is stopped")]
    Load {
        /// The node.
        name: String,
        /// Why.
        source: LoadError,
    },
    /// The base starts no nodes.
    #[error(
        "the node '{name}' cannot be restarted: {source}; it was left as it is\n{hint}",
        hint = source.hint()
    )]
    Forbidden {
        /// The node.
        name: String,
        /// Why.
        source: Forbidden,
    },
    /// The module failed.
    #[error("the node '{name}' could not be restarted: {source}; it is stopped")]
    Driver {
        /// The node.
        name: String,
        /// Why.
        source: DriverError,
    },
}

/// Errors of a temporary lack of something.
const TEMPORARY: [Errno; 6] = [
    Errno::EMFILE,
    Errno::ENFILE,
    Errno::ENOMEM,
    Errno::EAGAIN,
    Errno::EINTR,
    Errno::EBUSY,
];

impl RestartError {
    /// Whether a later attempt may succeed without a change of the node: an image or file is being
    /// replaced, descriptors or memory are short, or a resource of the node is in use.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        let is_temporary_errno =
            |errno: Option<Errno>| errno.is_some_and(|errno| TEMPORARY.contains(&errno));
        match self {
            Self::Image { source, .. } => match source {
                image::FindError::Unknown(_) | image::FindError::BuiltIn(_) => true,
                image::FindError::Call(error) => is_temporary_errno(Some(error.errno)),
                image::FindError::Description { .. } => false,
            },
            Self::Files { source, .. } => {
                matches!(
                    source,
                    FilesError::Kernel { .. } | FilesError::Initrd { .. }
                )
            }
            Self::Device { source, .. } => {
                matches!(source, DeviceError::Taken(_) | DeviceError::Needed { .. })
            }
            Self::NotStopped(_) | Self::CoreTaken { .. } | Self::MemoryInUse(_) => true,
            Self::Load { source, .. } => match source {
                LoadError::Driver(error) => is_temporary_errno(error.errno()),
                LoadError::Initrd(_) => true,
                LoadError::Range(_) => false,
            },
            Self::Driver { source, .. } => is_temporary_errno(source.errno()),
            // Lockdown lasts until the base reboots, and a shutdown is not cancelled.
            Self::NoRecord(_)
            | Self::Layout { .. }
            | Self::Record { .. }
            | Self::Retired(_)
            | Self::Forbidden { .. } => false,
        }
    }
}

/// What causes a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartCause {
    /// Its user; clears the history.
    User,
    /// Its policy, unless the user has stopped the node; with the new history.
    Policy(History),
}

impl RestartCause {
    fn history(self) -> History {
        match self {
            Self::User => History::default(),
            Self::Policy(history) => history,
        }
    }

    fn flags(self) -> u32 {
        match self {
            Self::User => 0,
            Self::Policy(_) => abi::RECREATE_UNLESS_RETIRED,
        }
    }
}

/// Checks a node that runs for what would certainly prevent its restart, so that it is not stopped for
/// nothing.
///
/// # Errors
/// [`RestartError`]; the node runs on.
pub fn check_restart(driver: &Driver, root: &Root, handle: &Handle) -> Result<(), RestartError> {
    let name = name::text(&handle.info.name);
    let Some(record) = &handle.record else {
        return Err(RestartError::NoRecord(name));
    };
    match Forbidden::by_base(root) {
        Some(source) => Err(RestartError::Forbidden { name, source }),
        None => open(driver, &name, record).map(drop),
    }
}

/// Restarts a stopped node. Its memory, with the log, is cleared. Until it runs it belongs to this
/// descriptor: if this process exits before, it is stopped again.
///
/// # Errors
/// [`RestartError`]; the node is then stopped.
pub fn restart(
    driver: &Driver,
    root: &Root,
    handle: &mut Handle,
    cause: RestartCause,
) -> Result<(), RestartError> {
    let name = name::text(&handle.info.name);
    let Some(record) = &handle.record else {
        return Err(RestartError::NoRecord(name));
    };
    let bootable = open(driver, &name, record)?;
    let restart = RestartRecord {
        history: cause.history(),
        ..record.restart.clone()
    };
    let restarting = Restart {
        driver,
        root,
        handle,
        cause,
        restart: &restart,
    };
    let record = restarting.start(&bootable).map_err(|error| match error {
        Failed::Call(error) if matches!(error.errno, Errno::EBUSY | Errno::ENODEV) => {
            restarting.resource_in_use(name)
        }
        error => error.of(name),
    })?;
    handle.record = serde_json::from_slice(&record).ok();
    Ok(())
}

fn open(driver: &Driver, name: &str, record: &NodeRecord) -> Result<Bootable, RestartError> {
    let name = name.to_owned();
    // A recorded name is valid.
    let image = record
        .image
        .as_deref()
        .and_then(|image| image.parse::<Name>().ok());
    let Some(image) = image else {
        let files = Files {
            kernel: record.kernel.clone(),
            initrd: record.initrd.clone(),
        };
        let opened = Bootable::files(&files, record.payload);
        return opened.map_err(|source| RestartError::Files { name, source });
    };
    Bootable::of_image(driver, &image).map_err(|source| RestartError::Image { name, source })
}

/// A failure without the node's name.
enum Failed {
    Device(DeviceError),
    Layout(LayoutError),
    Record(usize),
    Call(CallError),
    Driver(DriverError),
    Load(LoadError),
}

impl Failed {
    fn of(self, name: String) -> RestartError {
        match self {
            Self::Device(source) => RestartError::Device { name, source },
            Self::Layout(source) => RestartError::Layout { name, source },
            Self::Record(size) => RestartError::Record { name, size },
            Self::Load(source) => RestartError::Load { name, source },
            Self::Driver(source) => RestartError::Driver { name, source },
            Self::Call(error) => match error.errno {
                Errno::ECANCELED => RestartError::Retired(name),
                _ => match Forbidden::of(&error) {
                    Some(source) => RestartError::Forbidden { name, source },
                    None => {
                        let source = error.into();
                        RestartError::Driver { name, source }
                    }
                },
            },
        }
    }
}

impl From<CallError> for Failed {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

/// A restart in progress.
struct Restart<'a> {
    driver: &'a Driver,
    root: &'a Root,
    handle: &'a Handle,
    cause: RestartCause,
    restart: &'a RestartRecord,
}

impl Restart<'_> {
    /// Sets the node up again and starts it. Returns its new record.
    fn start(&self, bootable: &Bootable) -> Result<Vec<u8>, Failed> {
        let node = &self.handle.node;
        let (old, memory) = (self.handle.record.as_ref(), node.memory()?);
        let cpus: Vec<u32> = self.handle.cpus.iter().map(|cpu| cpu.apic_id).collect();
        let spares = old.map_or_else(Vec::new, |record| record.room(&cpus));
        let setup = Setup {
            bootable,
            append: old.map_or("", |record| &record.append),
            cpus: &cpus,
            spare_cpus: &spares,
            chunks: &memory.chunks()?,
            shared: &node.shared_chunks()?,
            devices: &self.devices()?,
            machine: &self.driver.machine()?.0,
            restart: self.restart,
            described: old.and_then(|record| record.described.as_ref()),
            root: old.and_then(|record| record.root.as_deref()),
            disks: old.map_or(&[], |record| &record.disks),
            root_image: old.and_then(|record| record.root_image.as_ref()),
            network: old.and_then(|record| record.network.as_ref()),
            dump_on_crash: old.is_some_and(|record| record.dump_on_crash),
        };
        let layout = setup.lay_out().map_err(Failed::Layout)?;
        let record = setup
            .record(&layout)
            .map_err(|long| Failed::Record(long.0))?;
        node.recreate(&record, self.cause.flags())?;
        // Older mappings do not show the memory of the new run.
        let mut mapping = memory.map().map_err(|error| Failed::Driver(error.into()))?;
        bootable
            .load(&memory, &mut mapping, layout.kernel, layout.initrd)
            .and_then(|()| write_layout(&mut mapping, &layout))
            .map_err(Failed::Load)?;
        start_boot_core(node, &layout, &bootable.loadable)?;
        Ok(record)
    }

    /// Finds which resource of the node is in use.
    fn resource_in_use(&self, name: String) -> RestartError {
        if !matches!(self.handle.node.info(), Ok((info, _)) if info.state == abi::State::STOPPED) {
            return RestartError::NotStopped(name);
        }
        let cpus = self
            .driver
            .machine()
            .map_or_else(|_| Vec::new(), |(_, cpus)| cpus);
        let own = &self.handle.cpus;
        let had = own.iter().map(|own| own.cpu);
        let taken = had.filter_map(|cpu| Some((cpu, self.other_owner(cpu, &cpus)?)));
        match taken.into_iter().next() {
            Some((cpu, owner)) => RestartError::CoreTaken { name, cpu, owner },
            None => RestartError::MemoryInUse(name),
        }
    }

    /// The owner of a core, as a predicate, if the node cannot have it.
    fn other_owner(&self, cpu: u32, cpus: &[abi::Cpu]) -> Option<String> {
        let Some(found) = cpus.iter().find(|one| one.cpu == cpu) else {
            return Some("this system has switched off".into());
        };
        let is_others = found.owner == abi::CpuOwner::NODE && found.node != self.handle.info.id;
        is_others.then(|| format!("the node with the id {} has", found.node))
    }

    /// The node's devices. Those that went back to the base are checked again, since it may need
    /// them now.
    fn devices(&self) -> Result<Vec<Selected>, Failed> {
        let had = self.handle.node.devices()?;
        let addresses: Vec<_> = had.iter().map(PciAddress::from_abi).collect();
        let is_attached = |device: &abi::Device| device.flags & abi::DEVICE_ATTACHED != 0;
        let found = match had.iter().all(is_attached) {
            true => device::describe(self.root, &addresses),
            false => device::select(self.root, &addresses, false),
        };
        found.map_err(Failed::Device)
    }
}

#[cfg(test)]
mod tests {
    use insula_driver::name::Missing;

    use super::*;

    fn driver(errno: Errno) -> RestartError {
        let call = CallError {
            call: "INSULA_NODE_RECREATE",
            errno,
        };
        Failed::Call(call).of("web".into())
    }

    #[test]
    fn temporary_errors_are_retried() {
        let name = || "web".to_owned();
        let absent = RestartError::Image {
            name: name(),
            source: image::FindError::Unknown(Missing::among("debian", [])),
        };
        let passing = [
            absent,
            driver(Errno::EMFILE),
            driver(Errno::ENOMEM),
            RestartError::MemoryInUse(name()),
            RestartError::Device {
                name: name(),
                source: DeviceError::Taken("0000:01:00.0".parse().unwrap()),
            },
        ];
        for error in passing {
            assert!(error.is_temporary(), "{error}");
        }
        let lasting = [
            RestartError::NoRecord(name()),
            driver(Errno::EIO),
            driver(Errno::ECANCELED),
            RestartError::Device {
                name: name(),
                source: DeviceError::Unknown("0000:01:00.0".parse().unwrap()),
            },
        ];
        for error in lasting {
            assert!(!error.is_temporary(), "{error}");
        }
    }
}
