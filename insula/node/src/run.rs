//! Starting a node.
//!
//! Checks first (nothing is touched), then allocates memory, chooses and takes cores, lays out,
//! loads and starts. Until the start everything belongs to descriptors of this process, so its end
//! frees all.

use insula_abi as abi;
use insula_base::error::{Error, Kind, Source as Cause};
use insula_base::root::Root;
use insula_base::topology::{BaseMemory, Topology};
use insula_base::units::{CpuList, Size};
use insula_boot::{Layout, LayoutError};
use insula_driver::name::Name;
use insula_driver::{CallError, Driver, DriverError, Mapping, Memory, Node};
use insula_image::{Bootable, Files, LoadError, Opened, Payload, SnapshotImage, open_any};
use nix::errno::Errno;
use serde::Serialize;

use super::allocate::allocate_memory;
use super::claims;
use super::copy;
use super::forbidden;
use super::naming::{check_still_free, pick_name};
use super::root_image::SharedImage;
use super::setup::{RecordTooLong, Setup, start_boot_core, write_layout};
use super::timing::{Step, StepTimes, Timing};
use super::{Attachments, Described, NodeRoot, NodeSpec, RestartRecord};
use crate::attachment::Publish;
use crate::cores::{ChosenCore, CoreRequest};
use crate::device::{self, Selected};
use crate::isolation::{self, ConfineError, Monitor};
use crate::memory::check_available;
use crate::policy::{History, Policy};
use crate::shared_core;

/// Attempts to take cores that another process may take first.
pub(super) const CHOICES_MAX: u32 = 8;

/// Origin of a node's kernel.
#[derive(Clone, Debug)]
pub enum Source {
    /// A resident image.
    Image(Name),
    /// Files, to be loaded in this form.
    Files(Files, Payload),
}

/// A node to start.
#[derive(Clone, Debug)]
pub struct RunRequest {
    /// What it is to be.
    pub spec: NodeSpec,
    /// Its kernel.
    pub source: Source,
    /// Its name; generated if `None`.
    pub name: Option<Name>,
    /// Its cores: those of the spec, or those that were chosen for it.
    pub cores: CoreRequest,
    /// The attachments of the spec, looked up.
    pub attachments: Attachments,
    /// The project file that describes it, if any.
    pub described: Option<Described>,
    /// Whether it is removed, with its memory and log, when it has stopped without failure.
    pub remove: bool,
    /// Whether it was created before, by its name.
    pub is_created: bool,
    /// Whether its program waits for a command to be attached before it starts.
    pub is_attached: bool,
}

impl RunRequest {
    /// Its restart policy, without `panic=`, which is on its image's command line.
    fn policy(&self) -> Policy {
        Policy {
            remove: self.remove,
            ..self.spec.policy()
        }
        .watched(self.attachments.watch.as_ref())
    }
}

/// A node that was started.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Started {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: u32,
    /// Its cores by the base's numbers, the boot core first.
    pub cpus: CpuList,
    /// Their local APIC ids.
    pub apic_ids: Vec<u32>,
    /// Cores whose sibling thread is not the node's.
    pub half_cpus: CpuList,
    /// Durations of the steps.
    pub timing: Timing,
    /// Why it has no supervisor, if it has none.
    #[serde(skip)]
    pub unsupervised: Option<String>,
    /// Whether it is a copy, which has to be named anew.
    #[serde(skip)]
    pub is_copy: bool,
}

/// What is left of a start that failed after resources were taken.
pub(super) const GIVEN_BACK: &str = "what was taken for the node has been given back";

/// Starts a node, or fails at once if resources are lacking.
///
/// # Errors
/// Why it was not started; nothing is left behind, unless the error says that it runs. Of the kind
/// [`Kind::Unavailable`] if another node may hold what it needs.
pub(super) fn start_once(
    driver: &Driver,
    root: &Root,
    request: &RunRequest,
    began_tsc: u64,
) -> Result<(Started, Node), Error> {
    if let Some(snapshot) = snapshot_of(driver, &request.source) {
        return copy::start(driver, root, request, &snapshot, began_tsc);
    }
    let name = pick_name(driver, root, request)?;
    let bootable = open(driver, &request.source)?;
    preflight(driver, root, request, &bootable)?;
    let devices = device::select(
        root,
        &request.spec.device,
        request.spec.isolation,
        request.spec.force_device,
    )?;
    check_ports(request)?;
    claims::check(driver, root, request)?;
    let mut times = StepTimes::default();
    let root_image = request.attachments.root.as_ref().and_then(NodeRoot::image);
    let shared = root_image.map(|image| image.share(driver)).transpose()?;
    let memory = times.measure(Step::AllocateMemory, || {
        allocate_memory(driver, &request.spec.memory)
    })?;
    let mut start = Start {
        driver,
        root,
        request,
        bootable: &bootable,
        name,
        devices: &devices,
        shared: shared.as_ref(),
        times,
    };
    let (node, layout, chosen, half_cpus) = start.take_cores(&memory)?;
    if let Some(shared) = &shared {
        shared.share_with(&node)?;
    }
    let mut mapping = memory.map().map_err(module_failed)?;
    start.load(&memory, &mut mapping, &layout)?;
    let Start { times, name, .. } = start;
    let policy = Policy {
        panic_s: layout.panic_s,
        ..request.policy()
    };
    // Must be set before the node can end.
    node.supervise(abi::NodeSupervise {
        keep_cpus: policy.keep_cpus(),
        flags: 0,
    })
    .map_err(module_failed)?;
    start_boot_core(&node, &layout).map_err(call_failed)?;
    let (machine, info) = driver
        .machine()
        .and_then(|(machine, _)| Ok((machine, node.info()?.0)))
        .map_err(|error| state_unknown(&name, error))?;
    let timing = times.timing(bootable.read_time, &info, machine.tsc_khz, began_tsc);
    let started = Started {
        name: name.to_string(),
        id: info.id,
        cpus: CpuList(chosen.iter().map(|one| one.cpu).collect()),
        apic_ids: chosen.iter().map(|one| one.apic_id).collect(),
        half_cpus: CpuList(half_cpus),
        timing,
        unsupervised: None,
        is_copy: false,
    };
    Ok((started, node))
}

/// Checks a request as [`start`](super::start) does, and takes nothing.
///
/// # Errors
/// Why it would not be started.
pub fn check_start(driver: &Driver, root: &Root, request: &RunRequest) -> Result<(), Error> {
    pick_name(driver, root, request)?;
    if let Some(snapshot) = snapshot_of(driver, &request.source) {
        copy::check(&snapshot, request)?;
        return claims::check(driver, root, request);
    }
    preflight(driver, root, request, &open(driver, &request.source)?)?;
    let spec = &request.spec;
    device::select(root, &spec.device, spec.isolation, spec.force_device)?;
    check_ports(request)?;
    claims::check(driver, root, request)
}

/// Checks the published ports now, while errors can still be reported to the user.
fn check_ports(request: &RunRequest) -> Result<(), Error> {
    let ports = request
        .attachments
        .network
        .iter()
        .flat_map(|network| &network.publish);
    ports.copied().try_for_each(|publish| {
        publish
            .check()
            .map_err(|error| cannot_publish(publish, error))
    })
}

/// The snapshot, if that is what a node is to be started from.
pub(super) fn snapshot_of(driver: &Driver, source: &Source) -> Option<SnapshotImage> {
    let Source::Image(name) = source else {
        return None;
    };
    match open_any(driver, name) {
        Ok(Opened::Snapshot(snapshot)) => Some(snapshot),
        _ => None,
    }
}

fn open(driver: &Driver, source: &Source) -> Result<Bootable, Error> {
    match source {
        Source::Image(name) => Bootable::of_image(driver, name),
        Source::Files(files, payload) => Bootable::files(files, *payload),
    }
}

/// Checks the request before anything is taken.
fn preflight(
    driver: &Driver,
    root: &Root,
    request: &RunRequest,
    bootable: &Bootable,
) -> Result<(), Error> {
    let topology = Topology::read(root);
    let (machine, cpus) = driver.machine().map_err(module_failed)?;
    shared_core::available(&request.spec, &topology, &cpus).choose(&request.cores, None)?;
    let base = BaseMemory::read(root);
    check_available(&request.spec.memory, &topology, base, machine.pool_free)?;
    isolation::check(request.spec.isolation, &machine)?;
    shared_core::check(&request.spec, bootable, &cpus)?;
    let asked = request.spec.memory_size();
    let needed = bootable
        .loadable
        .footprint
        .saturating_add(bootable.initrd_size);
    if needed > asked {
        let release = &bootable.loadable.release;
        return Err(too_small(release, Size(needed), Size(asked)));
    }
    Ok(())
}

fn take_devices(node: &Node, devices: &[Selected]) -> Result<(), Error> {
    for device in devices {
        let taken = node.add_device(device.to_abi());
        taken.map_err(|error| device::explain(device.address, error))?;
    }
    Ok(())
}

/// A start in progress.
struct Start<'a> {
    driver: &'a Driver,
    root: &'a Root,
    request: &'a RunRequest,
    bootable: &'a Bootable,
    name: Name,
    devices: &'a [Selected],
    shared: Option<&'a SharedImage>,
    times: StepTimes,
}

type Taken = (Node, Layout, Vec<ChosenCore>, Vec<u32>);

impl Start<'_> {
    /// Chooses cores, lays the node out for them and takes them; retries if another process takes
    /// them first.
    fn take_cores(&mut self, memory: &Memory) -> Result<Taken, Error> {
        let chunks = memory.chunks().map_err(module_failed)?;
        let RunRequest {
            spec, attachments, ..
        } = self.request;
        let restart = RestartRecord {
            policy: self.request.policy(),
            history: History::default(),
            watch: attachments.watch.clone(),
        };
        let append = attachments.command_line(spec);
        for _ in 0..CHOICES_MAX {
            let (machine, cpus) = self.driver.machine().map_err(module_failed)?;
            let available = shared_core::available(spec, &Topology::read(self.root), &cpus);
            let chosen = available.choose(&self.request.cores, spec.numa_node())?;
            let later = (spec.max_cpus.unwrap_or_default() as usize).saturating_sub(chosen.len());
            let spares = available.spare_apic_ids(&chosen, later);
            let apic_ids: Vec<u32> = chosen.iter().map(|one| one.apic_id).collect();
            // The lock is held until the module has the node's record. What the node is told of its network depends
            // on the address that it is assigned.
            let claimed = claims::take(self.driver, self.root, self.request, &self.name)?;
            let setup = Setup {
                spec,
                name: self.name.as_str(),
                bootable: self.bootable,
                append: &append,
                cpus: &apic_ids,
                spare_cpus: &spares,
                chunks: &chunks,
                shared: self.shared.map_or(&[], |shared| &shared.chunks),
                devices: self.devices,
                machine: &machine,
                restart: &restart,
                described: self.request.described.as_ref(),
                root: attachments.folder(),
                root_image: attachments.root_image(),
                disks: &attachments.disks,
                volumes: &attachments.volumes,
                network: claimed.network.as_ref(),
                is_attached: self.request.is_attached,
            };
            let layout = self.times.measure(Step::Layout, || setup.lay_out());
            let layout = layout.map_err(cannot_lay_out)?;
            let monitor = Monitor::allocate(self.driver, &setup)?;
            let record = setup.record(&layout).map_err(too_long)?;
            let numbers: Vec<u32> = chosen.iter().map(|one| one.cpu).collect();
            let (driver, named) = (self.driver, (&self.name, &record[..]));
            let created = self.times.measure(Step::TakeCores, || {
                shared_core::create_node(driver, spec, named, &numbers, memory)
            });
            match created {
                Ok(node) => {
                    check_still_free(self.root, self.request, &self.name)?;
                    // What confines the node describes its devices.
                    take_devices(&node, self.devices)?;
                    if let Some(monitor) = monitor {
                        let confined = monitor.confine(&node, &setup, &layout);
                        confined.map_err(cannot_confine)?;
                    }
                    return Ok((node, layout, chosen.clone(), available.split_cores(&chosen)));
                }
                Err(error) if let Some(refusal) = shared_core::refusal(spec, &error) => {
                    return Err(refusal);
                }
                // A core was taken, or went offline, meanwhile.
                Err(error) if matches!(error.errno, Errno::EBUSY | Errno::ENODEV) => {}
                Err(error) if error.errno == Errno::EEXIST => {
                    self.name = pick_name(self.driver, self.root, self.request)?;
                }
                Err(error) => return Err(call_failed(error)),
            }
        }
        Err(contended())
    }

    /// Loads kernel, initrd and all tables into the node's memory.
    fn load(
        &mut self,
        memory: &Memory,
        mapping: &mut Mapping,
        layout: &Layout,
    ) -> Result<(), Error> {
        let bootable = self.bootable;
        let loaded = self.times.measure(Step::Load, || {
            bootable.load(memory, mapping, layout.kernel, layout.initrd)
        });
        loaded.map_err(load_failed)?;
        let written = || write_layout(mapping, layout);
        self.times
            .measure(Step::Layout, written)
            .map_err(load_failed)
    }
}

/// The error of a port of the base that cannot be opened.
#[must_use]
pub fn cannot_publish(publish: Publish, error: std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::AddrInUse => Kind::Unavailable,
        _ => Kind::Other,
    };
    Error::of(kind, format!("the port {publish} cannot be opened"))
        .because(error)
        .untouched()
        .about("publish")
}

fn too_small(release: &str, needed: Size, asked: Size) -> Error {
    Error::new(format!(
        "kernel {release} and its initrd need {needed} of memory to start, but only {asked} were \
         requested"
    ))
    .untouched()
    .hint("request more with --memory")
}

fn cannot_lay_out(error: LayoutError) -> Error {
    given_back(Error::new("the node cannot be laid out").because(error))
}

fn cannot_confine(error: ConfineError) -> Error {
    given_back(Error::new("the node cannot be confined").because(error))
}

fn too_long(RecordTooLong(size): RecordTooLong) -> Error {
    let max = abi::DESCRIPTION_MAX;
    let what = format!("the node's record has {size} bytes, more than {max}");
    given_back(Error::new(what)).hint("shorten --append")
}

pub(super) fn contended() -> Error {
    let what = format!("other processes took the chosen cores {CHOICES_MAX} times in a row");
    given_back(Error::of(Kind::Unavailable, what))
        .hint("try again when fewer nodes are being started")
}

fn load_failed(error: LoadError) -> Error {
    given_back(Error::new("loading failed").because(error))
}

pub(super) fn module_failed(error: impl Into<Cause>) -> Error {
    given_back(Error::new("the module failed").because(error))
}

/// The module has refused a call, perhaps since the base starts no nodes.
pub(super) fn call_failed(error: CallError) -> Error {
    match forbidden::refusal(&error) {
        Some(refusal) => given_back(refusal),
        None => module_failed(DriverError::from(error)),
    }
}

fn given_back(error: Error) -> Error {
    error.leaving(GIVEN_BACK)
}

/// The node runs, but its state cannot be read.
fn state_unknown(name: &Name, error: CallError) -> Error {
    Error::new(format!("the node '{name}' was started, but: {error}")).hint("`insula ps` shows it")
}
