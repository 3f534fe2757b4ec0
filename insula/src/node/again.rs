//! Starting a stopped node again: same name, cores and memory, from its image as it is now.

use insula_abi as abi;
use insula_boot::LayoutError;
use nix::errno::Errno;

use super::setup::{Setup, begin, write_layout};
use super::{Forbidden, Handle, LifeRecord, NodeRecord};
use crate::device::{self, DeviceError, PciAddress, Selected};
use crate::driver::{CallError, Driver, DriverError};
use crate::image::{self, Bootable, Files, FilesError, LoadError};
use crate::name::{self, Name};
use crate::policy::History;
use crate::root::Root;

/// Why a node was not started again. It is stopped, as it was.
#[derive(Debug, thiserror::Error)]
pub enum AgainError {
    /// What is kept beside the node is not ours.
    #[error(
        "the record of the node '{0}' cannot be understood; it was left as it is\n\
         it was started by another version of insula: use that one"
    )]
    NoRecord(String),
    /// Its image cannot be had.
    #[error("the node '{name}' cannot be started again: {source}")]
    Image {
        /// The node.
        name: String,
        /// Why.
        source: image::FindError,
    },
    /// Its files are no good any more.
    #[error("the node '{name}' cannot be started again: {source}")]
    Files {
        /// The node.
        name: String,
        /// Why.
        source: FilesError,
    },
    /// A device that it had is not there any more.
    #[error("the node '{name}' cannot be started again: {source}")]
    Device {
        /// The node.
        name: String,
        /// Why.
        source: DeviceError,
    },
    /// It cannot be laid out: the image is another one now.
    #[error(
        "the node '{name}' cannot be laid out anew: {source}; it was left as it is\n\
         its image may have changed: remove the node and start another"
    )]
    Layout {
        /// The node.
        name: String,
        /// Why.
        source: LayoutError,
    },
    /// Too much to keep.
    #[error("the record of the node '{name}' has {size} bytes, too many; it was left as it is")]
    Record {
        /// The node.
        name: String,
        /// Bytes that the record has.
        size: usize,
    },
    /// It is stopped for good.
    #[error("the node '{0}' was stopped by its user and is not started again")]
    Retired(String),
    /// Somebody else is starting it, or has.
    #[error(
        "the node '{0}' cannot be started again: it is not stopped; it was left as it is\n\
         another command may be starting it: `insula ps` shows its state"
    )]
    NotStopped(String),
    /// One of its cores is another's.
    #[error(
        "the node '{name}' cannot be started again: it has had core {cpu}, which {owner} now; it was \
         left as it is\n\
         `insula machine info` tells who has which core: stop that node, or remove this one and \
         start it on other cores"
    )]
    CoreTaken {
        /// The node.
        name: String,
        /// The core, by the base's number.
        cpu: u32,
        /// Whose it is, as a predicate.
        owner: String,
    },
    /// What remains: its memory, or a device, is in use.
    #[error(
        "the node '{0}' cannot be started again: a program of this system is still reading or \
         writing its memory; it was left as it is\n\
         try again in a moment, when that has ended"
    )]
    MemoryInUse(String),
    /// The bytes could not be brought into place.
    #[error("the node '{name}' could not be loaded anew: {source}; it is stopped")]
    Load {
        /// The node.
        name: String,
        /// Why.
        source: LoadError,
    },
    /// The base starts none.
    #[error(
        "the node '{name}' cannot be started again: {source}; it is stopped\n{way_out}",
        way_out = source.way_out()
    )]
    Forbidden {
        /// The node.
        name: String,
        /// Why.
        source: Forbidden,
    },
    /// The module failed.
    #[error("the node '{name}' could not be started again: {source}; it is stopped")]
    Driver {
        /// The node.
        name: String,
        /// Why.
        source: DriverError,
    },
}

/// What the kernel answers when something is short, or in use, for the moment.
const PASSING: [Errno; 6] = [
    Errno::EMFILE,
    Errno::ENFILE,
    Errno::ENOMEM,
    Errno::EAGAIN,
    Errno::EINTR,
    Errno::EBUSY,
];

impl AgainError {
    /// Whether what is in the way may be gone later without anything being done to the node: an image
    /// or a file that is being replaced, descriptors or memory that are short, somebody who uses what
    /// the node has had.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        let is_passing = |errno: Option<Errno>| errno.is_some_and(|errno| PASSING.contains(&errno));
        match self {
            Self::Image { source, .. } => match source {
                image::FindError::Unknown(_) | image::FindError::BuiltIn(_) => true,
                image::FindError::Call(error) => is_passing(Some(error.errno)),
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
                LoadError::Driver(error) => is_passing(error.errno()),
                LoadError::Initrd(_) => true,
                LoadError::Range(_) => false,
            },
            Self::Driver { source, .. } => is_passing(source.errno()),
            // Lockdown is not lifted before the base is booted again, nor is its own end called off.
            Self::NoRecord(_)
            | Self::Layout { .. }
            | Self::Record { .. }
            | Self::Retired(_)
            | Self::Forbidden { .. } => false,
        }
    }
}

/// Who wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Its user: whatever was before is forgotten.
    User,
    /// Its policy, unless the user has stopped it: with this to be remembered.
    Policy(History),
}

impl Wish {
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

/// Starts a stopped node again. Its memory is cleared, its log with it. It belongs to this
/// descriptor until it runs: if this process ends before, it is stopped again.
///
/// # Errors
/// [`AgainError`]; the node is then stopped.
pub fn again(
    driver: &Driver,
    root: &Root,
    handle: &mut Handle,
    wish: Wish,
) -> Result<(), AgainError> {
    let name = name::text(&handle.info.name);
    let Some(record) = &handle.record else {
        return Err(AgainError::NoRecord(name));
    };
    let bootable = open(driver, &name, record)?;
    let life = LifeRecord {
        history: wish.history(),
        ..record.life.clone()
    };
    let again = Again {
        driver,
        root,
        handle,
        wish,
        life: &life,
    };
    let record = again.start(&bootable).map_err(|error| match error {
        Failed::Call(error) if matches!(error.errno, Errno::EBUSY | Errno::ENODEV) => {
            again.in_the_way(name)
        }
        error => error.of(name),
    })?;
    handle.record = serde_json::from_slice(&record).ok();
    Ok(())
}

fn open(driver: &Driver, name: &str, record: &NodeRecord) -> Result<Bootable, AgainError> {
    let name = name.to_owned();
    // A name that was ours when it was recorded is one still.
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
        return opened.map_err(|source| AgainError::Files { name, source });
    };
    Bootable::of_image(driver, &image).map_err(|source| AgainError::Image { name, source })
}

/// A failure, the node's name still to be told.
enum Failed {
    Device(DeviceError),
    Layout(LayoutError),
    Record(usize),
    Call(CallError),
    Driver(DriverError),
    Load(LoadError),
}

impl Failed {
    fn of(self, name: String) -> AgainError {
        match self {
            Self::Device(source) => AgainError::Device { name, source },
            Self::Layout(source) => AgainError::Layout { name, source },
            Self::Record(size) => AgainError::Record { name, size },
            Self::Load(source) => AgainError::Load { name, source },
            Self::Driver(source) => AgainError::Driver { name, source },
            Self::Call(error) => match error.errno {
                Errno::ECANCELED => AgainError::Retired(name),
                _ => match Forbidden::of(&error) {
                    Some(source) => AgainError::Forbidden { name, source },
                    None => {
                        let source = error.into();
                        AgainError::Driver { name, source }
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

/// A start under way.
struct Again<'a> {
    driver: &'a Driver,
    root: &'a Root,
    handle: &'a Handle,
    wish: Wish,
    life: &'a LifeRecord,
}

impl Again<'_> {
    /// Puts the node together anew and starts it. Answers its new record.
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
            life: self.life,
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
        node.recreate(&record, self.wish.flags())?;
        // Mappings that were made before show nothing of the new life.
        let mut mapping = memory.map().map_err(|error| Failed::Driver(error.into()))?;
        bootable
            .load(&memory, &mut mapping, layout.kernel, layout.initrd)
            .and_then(|()| write_layout(&mut mapping, &layout))
            .map_err(Failed::Load)?;
        begin(node, &layout, &bootable.loadable)?;
        Ok(record)
    }

    /// What keeps the module from taking what the node has had: as far as can be seen now.
    fn in_the_way(&self, name: String) -> AgainError {
        if !matches!(self.handle.node.info(), Ok((info, _)) if info.state == abi::State::STOPPED) {
            return AgainError::NotStopped(name);
        }
        let cpus = self
            .driver
            .machine()
            .map_or_else(|_| Vec::new(), |(_, cpus)| cpus);
        let own = &self.handle.cpus;
        let had = own.iter().map(|own| own.cpu);
        let taken = had.filter_map(|cpu| Some((cpu, self.taken_by(cpu, &cpus)?)));
        match taken.into_iter().next() {
            Some((cpu, owner)) => AgainError::CoreTaken { name, cpu, owner },
            None => AgainError::MemoryInUse(name),
        }
    }

    /// Whose a core is, if it cannot be the node's.
    fn taken_by(&self, cpu: u32, cpus: &[abi::Cpu]) -> Option<String> {
        let Some(found) = cpus.iter().find(|one| one.cpu == cpu) else {
            return Some("this system has switched off".into());
        };
        let is_others = found.owner == abi::CpuOwner::NODE && found.node != self.handle.info.id;
        is_others.then(|| format!("the node with the id {} has", found.node))
    }

    /// What the node is to be told of its devices. Those that went back to the base may have become
    /// something that it needs.
    fn devices(&self) -> Result<Vec<Selected>, Failed> {
        let had = self.handle.node.devices()?;
        let addresses: Vec<_> = had.iter().map(PciAddress::from_abi).collect();
        let is_held = |device: &abi::Device| device.flags & abi::DEVICE_HELD != 0;
        let found = match had.iter().all(is_held) {
            true => device::describe(self.root, &addresses),
            false => device::select(self.root, &addresses, false),
        };
        found.map_err(Failed::Device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Missing;

    fn driver(errno: Errno) -> AgainError {
        let call = CallError {
            call: "INSULA_NODE_RECREATE",
            errno,
        };
        Failed::Call(call).of("web".into())
    }

    #[test]
    fn what_may_pass_is_tried_again() {
        let name = || "web".to_owned();
        let absent = AgainError::Image {
            name: name(),
            source: image::FindError::Unknown(Missing::among("debian", [])),
        };
        let passing = [
            absent,
            driver(Errno::EMFILE),
            driver(Errno::ENOMEM),
            AgainError::MemoryInUse(name()),
            AgainError::Device {
                name: name(),
                source: DeviceError::Taken("0000:01:00.0".parse().unwrap()),
            },
        ];
        for error in passing {
            assert!(error.may_pass(), "{error}");
        }
        let lasting = [
            AgainError::NoRecord(name()),
            driver(Errno::EIO),
            driver(Errno::ECANCELED),
            AgainError::Device {
                name: name(),
                source: DeviceError::Unknown("0000:01:00.0".parse().unwrap()),
            },
        ];
        for error in lasting {
            assert!(!error.may_pass(), "{error}");
        }
    }
}
