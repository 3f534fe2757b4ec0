//! Restarting a stopped node: same name, cores and memory, from its image as it is now.

use insula_abi as abi;
use insula_base::error::{Error, Kind, Source};
use insula_base::root::Root;
use insula_boot::LayoutError;
use insula_driver::name;
use insula_driver::{CallError, Driver, DriverError};
use insula_image::{Bootable, Files, LoadError};
use nix::errno::Errno;

use super::claims::check_network;
use super::setup::{RecordTooLong, Setup, start_boot_core, write_layout};
use super::{Handle, NodeRecord, RestartRecord, forbidden, no_record};
use crate::device::{self, PciAddress, Selected};
use crate::isolation::{ConfineError, Monitor};
use crate::policy::History;

/// Errors of a temporary lack of something.
const TEMPORARY: [Errno; 6] = [
    Errno::EMFILE,
    Errno::ENFILE,
    Errno::ENOMEM,
    Errno::EAGAIN,
    Errno::EINTR,
    Errno::EBUSY,
];

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
/// Why it could not be restarted; the node runs on.
pub fn check_restart(driver: &Driver, root: &Root, handle: &Handle) -> Result<(), Error> {
    let name = name::text(&handle.info.name);
    let record = handle.record.as_ref();
    let record = record.ok_or_else(|| no_record(&name).unchanged())?;
    if handle.snapshot().is_some() {
        return Err(is_copy(&name));
    }
    forbidden::check_base(root).map_err(|error| forbidden_to(&name, error))?;
    open(driver, &name, record).map(drop)
}

/// Restarts a stopped node. Its memory, with the log, is cleared. Until it runs it belongs to this
/// descriptor: if this process exits before, it is stopped again.
///
/// # Errors
/// Why it was not; the node is then stopped. Of the kind [`Kind::Unavailable`] if a later attempt may
/// succeed without a change of the node: an image or file is being replaced, descriptors or memory are
/// short, or a resource of the node is in use. [`Kind::Retired`] if it is not to be restarted.
pub fn restart(
    driver: &Driver,
    root: &Root,
    handle: &mut Handle,
    cause: RestartCause,
) -> Result<(), Error> {
    let name = name::text(&handle.info.name);
    let record = handle.record.as_ref();
    let record = record.ok_or_else(|| no_record(&name).unchanged())?;
    if handle.snapshot().is_some() {
        return Err(is_copy(&name));
    }
    let bootable = open(driver, &name, record)?;
    let restart = RestartRecord {
        history: cause.history(),
        ..record.restart.clone()
    };
    let restarting = Restart {
        driver,
        root,
        name: &name,
        handle,
        record,
        cause,
        restart: &restart,
    };
    let record = restarting.start(&bootable)?;
    handle.record = NodeRecord::read(&record);
    Ok(())
}

/// The memory of a copy has gone on: there is nothing to start it from.
fn is_copy(name: &str) -> Error {
    Error::new(format!(
        "the node '{name}' is a copy, which cannot be started again"
    ))
    .unchanged()
    .hint("`insula run --image SNAPSHOT` starts another copy")
}

fn open(driver: &Driver, name: &str, record: &NodeRecord) -> Result<Bootable, Error> {
    let opened = match &record.spec.image {
        Some(image) => Bootable::of_image(driver, image),
        None => {
            let files = Files {
                kernel: record.kernel.clone(),
                initrd: record.initrd.clone(),
            };
            Bootable::files(&files, record.payload)
        }
    };
    opened.map_err(|error| without_kernel(name, error))
}

/// A restart in progress.
struct Restart<'a> {
    driver: &'a Driver,
    root: &'a Root,
    name: &'a str,
    handle: &'a Handle,
    record: &'a NodeRecord,
    cause: RestartCause,
    restart: &'a RestartRecord,
}

impl Restart<'_> {
    /// Sets the node up again and starts it. Returns its new record.
    fn start(&self, bootable: &Bootable) -> Result<Vec<u8>, Error> {
        let node = &self.handle.node;
        let failed = |error| self.call_failed(error);
        if let Some(network) = &self.record.network {
            let checked = check_network(self.root, network, self.handle.info.id);
            checked.map_err(|error| hides_a_network(self.name, error))?;
        }
        let (old, memory) = (self.record, node.memory().map_err(failed)?);
        let cpus: Vec<u32> = self.handle.cpus.iter().map(|cpu| cpu.apic_id).collect();
        let spares = old.room(&cpus);
        let setup = Setup {
            bootable,
            spec: &old.spec,
            name: self.name,
            append: &old.append,
            cpus: &cpus,
            spare_cpus: &spares,
            chunks: &memory.chunks().map_err(failed)?,
            shared: &node.shared_chunks().map_err(failed)?,
            devices: &self.devices()?,
            machine: &self.driver.machine().map_err(failed)?.0,
            restart: self.restart,
            described: old.described.as_ref(),
            root: old.root.as_deref(),
            disks: &old.disks,
            volumes: &old.volumes,
            root_image: old.root_image.as_ref(),
            network: old.network.as_ref(),
            is_attached: false,
        };
        let layout = setup.lay_out();
        let layout = layout.map_err(|error| cannot_lay_out(self.name, error))?;
        let record = setup.record(&layout);
        let record = record.map_err(|error| too_long(self.name, &error))?;
        let monitor = Monitor::of(node, old.spec.isolation)?;
        node.recreate(&record, self.cause.flags()).map_err(failed)?;
        // Older mappings do not show the memory of the new run.
        let mapping = memory.map();
        let mut mapping = mapping.map_err(|error| module_failed(self.name, error))?;
        bootable
            .load(&memory, &mut mapping, layout.kernel, layout.initrd)
            .and_then(|()| write_layout(&mut mapping, &layout))
            .map_err(|error| load_failed(self.name, error))?;
        if let Some(monitor) = monitor {
            let confined = monitor.confine(node, &setup, &layout);
            confined.map_err(|error| cannot_confine(self.name, error))?;
        }
        start_boot_core(node, &layout).map_err(failed)?;
        Ok(record)
    }

    /// What the module's refusal means.
    fn call_failed(&self, error: CallError) -> Error {
        match error.errno {
            Errno::EBUSY | Errno::ENODEV => self.resource_in_use(),
            Errno::ECANCELED => retired(self.name),
            _ => match forbidden::refusal(&error) {
                Some(refusal) => forbidden_to(self.name, refusal),
                None => module_failed(self.name, error.into()),
            },
        }
    }

    /// Finds which resource of the node is in use.
    fn resource_in_use(&self) -> Error {
        if !matches!(self.handle.node.info(), Ok((info, _)) if info.state == abi::State::STOPPED) {
            return not_stopped(self.name);
        }
        let cpus = self
            .driver
            .machine()
            .map_or_else(|_| Vec::new(), |(_, cpus)| cpus);
        let own = &self.handle.cpus;
        let had = own.iter().map(|own| own.cpu);
        let taken = had.filter_map(|cpu| Some((cpu, self.other_owner(cpu, &cpus)?)));
        match taken.into_iter().next() {
            Some((cpu, owner)) => core_taken(self.name, cpu, &owner),
            None => memory_in_use(self.name),
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
    fn devices(&self) -> Result<Vec<Selected>, Error> {
        let had = self.handle.node.devices();
        let had = had.map_err(|error| self.call_failed(error))?;
        let addresses: Vec<_> = had.iter().map(PciAddress::from_abi).collect();
        let is_attached = |device: &abi::Device| device.flags & abi::DEVICE_ATTACHED != 0;
        let isolation = self.record.spec.isolation;
        let found = match had.iter().all(is_attached) {
            true => device::describe(self.root, &addresses, isolation),
            false => device::select(self.root, &addresses, isolation, false),
        };
        found.map_err(|error| error.context(cannot(self.name)))
    }
}

fn cannot(name: &str) -> String {
    format!("the node '{name}' cannot be restarted")
}

/// An error that a later attempt may not meet.
fn passing(name: &str, why: impl Into<Source>) -> Error {
    Error::of(Kind::Unavailable, cannot(name))
        .because(why)
        .unchanged()
}

fn is_temporary(errno: Option<Errno>) -> bool {
    errno.is_some_and(|errno| TEMPORARY.contains(&errno))
}

/// Its image or its files are missing. Either may be being replaced.
fn without_kernel(name: &str, error: Error) -> Error {
    let is_passing = matches!(error.kind, Kind::NoImage | Kind::Kernel | Kind::Initrd);
    let refused = error.cause::<CallError>().map(|error| error.errno);
    let kind = kind(is_passing || is_temporary(refused));
    error.context(cannot(name)).with_kind(kind)
}

/// It cannot be laid out, as when its image has changed.
fn cannot_lay_out(name: &str, error: LayoutError) -> Error {
    Error::new(format!("the node '{name}' cannot be laid out again"))
        .because(error)
        .unchanged()
        .hint("its image may have changed: remove the node and start another")
}

/// The base has come to reach another network at its addresses: that may end, as one through a tunnel does.
fn hides_a_network(name: &str, error: Error) -> Error {
    error.context(cannot(name)).with_kind(Kind::Unavailable).hint(format!(
        "remove the way there, or the node (`insula rm {name}`), and start another: it gets other addresses if no \
         node with a network is left"
    ))
}

fn cannot_confine(name: &str, error: ConfineError) -> Error {
    stopped(false, format!("the node '{name}' cannot be confined again")).because(error)
}

fn too_long(name: &str, RecordTooLong(size): &RecordTooLong) -> Error {
    Error::new(format!(
        "the record of the node '{name}' is too large ({size} bytes)"
    ))
    .unchanged()
}

/// The error of a node whose user has stopped or removed it.
#[must_use]
pub fn retired(name: &str) -> Error {
    let what = format!("the node '{name}' was stopped by its user and is not restarted");
    Error::of(Kind::Retired, what)
}

/// Another process is starting it, or has.
fn not_stopped(name: &str) -> Error {
    passing(name, "it is not stopped")
        .hint("another command may be starting it: `insula ps` shows its state")
}

/// One of its cores is in use; `owner` is a predicate.
fn core_taken(name: &str, cpu: u32, owner: &str) -> Error {
    passing(name, format!("it had core {cpu}, which {owner} now")).hint(
        "`insula machine info` shows the owner of each core: stop that node, or remove this one \
         and start it on other cores",
    )
}

/// Its memory, or a device, is in use.
fn memory_in_use(name: &str) -> Error {
    passing(
        name,
        "a program of this system is still reading or writing its memory",
    )
    .hint("try again in a moment, when that has ended")
}

fn load_failed(name: &str, error: LoadError) -> Error {
    let is_passing = match &error {
        LoadError::Driver(error) => is_temporary(error.errno()),
        LoadError::Initrd(_) => true,
        LoadError::Range(_) => false,
    };
    stopped(
        is_passing,
        format!("the node '{name}' could not be loaded again"),
    )
    .because(error)
}

/// The base starts no nodes. Lockdown lasts until it reboots, and a shutdown is not cancelled.
fn forbidden_to(name: &str, refusal: Error) -> Error {
    refusal.context(cannot(name)).unchanged()
}

/// The error of a restart that the module did not execute.
#[must_use]
pub fn module_failed(name: &str, error: DriverError) -> Error {
    let what = format!("the node '{name}' could not be restarted");
    stopped(is_temporary(error.errno()), what).because(error)
}

fn stopped(is_passing: bool, what: String) -> Error {
    Error::of(kind(is_passing), what).leaving("it is stopped")
}

fn kind(is_passing: bool) -> Kind {
    match is_passing {
        true => Kind::Unavailable,
        false => Kind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(errno: Errno) -> Error {
        let call = "INSULA_NODE_RECREATE";
        module_failed("web", CallError { call, errno }.into())
    }

    #[test]
    fn temporary_errors_are_retried() {
        let absent = Error::of(Kind::NoImage, "there is no image 'debian'");
        let used = Error::of(Kind::Unavailable, "device 0000:01:00.0 is used");
        for error in [
            without_kernel("web", absent),
            refused(Errno::EMFILE),
            refused(Errno::ENOMEM),
            memory_in_use("web"),
            used.context(cannot("web")),
        ] {
            assert_eq!(error.kind, Kind::Unavailable, "{error}");
        }
        for error in [
            no_record("web"),
            refused(Errno::EIO),
            retired("web"),
            Error::new("there is no PCI function 0000:01:00.0").context(cannot("web")),
        ] {
            assert_ne!(error.kind, Kind::Unavailable, "{error}");
        }
    }
}
