//! Starting a node.
//!
//! Checks first (nothing is touched), then allocates memory, chooses and takes cores, lays out,
//! loads and starts. Until the start everything belongs to descriptors of this process, so its end
//! frees all.

use std::time::{Duration, Instant};

use insula_abi as abi;
use insula_base::root::Root;
use insula_base::topology::{BaseMemory, Topology};
use insula_base::units::{CpuList, Size};
use insula_boot::{Layout, LayoutError};
use insula_driver::name::{self, Name};
use insula_driver::{CallError, Driver, DriverError, Mapping, Memory, Node};
use insula_image::{self as image, Bootable, Files, FilesError, LoadError, Payload};
use nix::errno::Errno;
use serde::Serialize;

use super::allocate::{AllocateError, allocate_memory};
use super::claims::{self, ClaimError};
use super::root_image::SharedImage;
use super::setup::{RecordTooLong, Setup, start_boot_core, write_layout};
use super::{Described, Forbidden, NodeRoot, RestartRecord, RootImage, RootImageError};
use crate::attachment::{DiskFile, Networking, Publish};
use crate::cores::{ChosenCore, CoreError, CoreRequest, Cores};
use crate::device::{self, DeviceError, PciAddress, Selected};
use crate::memory::{MemoryError, MemorySpec, check_available};
use crate::policy::{History, Policy};

/// Attempts to take cores that another process may take first.
const CHOICES_MAX: u32 = 8;

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
    /// Its kernel.
    pub source: Source,
    /// Its name; generated if `None`.
    pub name: Option<Name>,
    /// Its cores.
    pub cores: CoreRequest,
    /// Maximum number of its cores after updates.
    pub cores_max: u32,
    /// Its memory, the sum of these.
    pub memory: Vec<MemorySpec>,
    /// PCI functions to attach.
    pub devices: Vec<PciAddress>,
    /// Attach devices even if the base needs them.
    pub force_devices: bool,
    /// Its root, if it is not the image's initial file system; needs an agent.
    pub root: Option<NodeRoot>,
    /// Its disks, in order.
    pub disks: Vec<DiskFile>,
    /// Its network, if any; needs an agent.
    pub network: Option<Networking>,
    /// The node's part of the command line, after the image's.
    pub append: String,
    /// Its restart policy. `panic_s` is taken from the command line.
    pub policy: Policy,
    /// The project file that describes it, if any.
    pub described: Option<Described>,
    /// Whether a dump is kept if it crashes.
    pub dump_on_crash: bool,
}

/// Durations of the steps of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Timing {
    /// Loading the image into the node's memory; with files, including reading them.
    pub load_ns: u64,
    /// Allocating memory from base or pool.
    pub take_memory_ns: u64,
    /// Taking cores from base or pool.
    pub take_cores_ns: u64,
    /// Making tables and writing them to the node's memory.
    pub layout_ns: u64,
    /// From the module's start of the core to the kernel's first instruction.
    pub start_ns: u64,
    /// From the start of this process to the kernel's first instruction.
    pub total_ns: u64,
}

/// A node that was started.
#[derive(Clone, Debug, Serialize)]
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
}

/// Why a node was not started.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The name is taken.
    #[error(
        "there is a node '{0}' already; nothing was touched\n\
         choose another name, or remove it with `insula rm {0}`"
    )]
    NameTaken(Name),
    /// The image was not found.
    #[error(transparent)]
    Image(#[from] image::FindError),
    /// The files are not valid.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The cores are not available.
    #[error(transparent)]
    Cores(#[from] CoreError),
    /// The memory is not available.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A device is not available.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Another node has a claim that conflicts.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// A port of the base cannot be opened.
    #[error("the port {publish} cannot be opened: {source}; nothing was touched")]
    Publish {
        /// The port.
        publish: Publish,
        /// Why.
        source: std::io::Error,
    },
    /// Its root image cannot be read into memory.
    #[error(transparent)]
    RootImage(#[from] RootImageError),
    /// The memory could not be allocated.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// The memory is too small for kernel and initrd.
    #[error(
        "kernel {release} and its initrd need {needed} of memory to start, but only {asked} were \
         requested; nothing was touched\n\
         request more with --memory"
    )]
    TooSmall {
        /// The kernel.
        release: String,
        /// The minimum.
        needed: Size,
        /// The requested size.
        asked: Size,
    },
    /// The node cannot be laid out.
    #[error("the node cannot be laid out: {0}; what was taken for it has been given back")]
    Layout(#[from] LayoutError),
    /// The record is too large.
    #[error(
        "the node's record has {0} bytes, more than {max}; what was taken for it has been \
         given back\n\
         shorten --append", max = abi::DESCRIPTION_MAX
    )]
    Record(usize),
    /// Other processes always took the cores first.
    #[error(
        "other processes took the chosen cores {CHOICES_MAX} times in a row; what was taken for \
         the node has been given back\n\
         try again when fewer nodes are being started"
    )]
    Contended,
    /// Kernel or initrd could not be loaded.
    #[error("loading failed: {0}; what was taken for the node has been given back")]
    Load(#[from] LoadError),
    /// The base starts no nodes.
    #[error("{0}; what was taken for the node has been given back\n{hint}", hint = .0.hint())]
    Forbidden(Forbidden),
    /// The module failed.
    #[error("the module failed: {0}; what was taken for the node has been given back")]
    Driver(#[from] DriverError),
    /// The node runs, but its state cannot be read.
    #[error("the node '{name}' was started, but: {source}\n`insula ps` shows it")]
    StateUnknown {
        /// Its name.
        name: Name,
        /// What went wrong.
        source: CallError,
    },
}

impl From<RecordTooLong> for RunError {
    fn from(RecordTooLong(size): RecordTooLong) -> Self {
        Self::Record(size)
    }
}

impl From<CallError> for RunError {
    fn from(error: CallError) -> Self {
        Forbidden::of(&error).map_or_else(|| Self::Driver(error.into()), Self::Forbidden)
    }
}

/// Starts a node, or fails at once if resources are lacking.
///
/// # Errors
/// [`RunError`]; except for [`RunError::StateUnknown`] nothing is left behind.
pub(super) fn start_once(
    driver: &Driver,
    root: &Root,
    request: &RunRequest,
    began_tsc: u64,
) -> Result<(Started, Node), RunError> {
    let name = pick_name(driver, request)?;
    let bootable = open(driver, &request.source)?;
    preflight(driver, root, request, &bootable)?;
    let devices = device::select(root, &request.devices, request.force_devices)?;
    check_ports(request)?;
    claims::check(driver, request)?;
    let mut clock = Clock::default();
    let root_image = request.root.as_ref().and_then(NodeRoot::image);
    let shared = root_image.map(|image| image.share(driver)).transpose()?;
    let memory = clock.measure(Step::AllocateMemory, || {
        allocate_memory(driver, &request.memory)
    })?;
    let mut start = Start {
        driver,
        root,
        request,
        bootable: &bootable,
        name,
        devices: &devices,
        shared: shared.as_ref(),
        clock,
    };
    let (node, layout, chosen, half_cpus) = start.take_cores(&memory)?;
    take_devices(&node, &devices)?;
    if let Some(shared) = &shared {
        shared.share_with(&node)?;
    }
    let mut mapping = memory.map().map_err(DriverError::from)?;
    start.load(&memory, &mut mapping, &layout)?;
    let Start { clock, name, .. } = start;
    let policy = Policy {
        panic_s: layout.panic_s,
        ..request.policy
    };
    // Must be set before the node can end.
    node.supervise(abi::NodeSupervise {
        keep_cpus: policy.keep_cpus(),
        flags: 0,
    })?;
    start_boot_core(&node, &layout, &bootable.loadable)?;
    let (machine, info) = driver
        .machine()
        .and_then(|(machine, _)| Ok((machine, node.info()?.0)))
        .map_err(|source| RunError::StateUnknown {
            name: name.clone(),
            source,
        })?;
    let timing = clock.timing(bootable.read_time, &info, machine.tsc_khz, began_tsc);
    let started = Started {
        name: name.to_string(),
        id: info.id,
        cpus: CpuList(chosen.iter().map(|one| one.cpu).collect()),
        apic_ids: chosen.iter().map(|one| one.apic_id).collect(),
        half_cpus: CpuList(half_cpus),
        timing,
        unsupervised: None,
    };
    Ok((started, node))
}

/// Checks the published ports now, while errors can still be reported to the user.
fn check_ports(request: &RunRequest) -> Result<(), RunError> {
    let ports = request.network.iter().flat_map(|network| &network.publish);
    ports.copied().try_for_each(|publish| {
        publish
            .check()
            .map_err(|source| RunError::Publish { publish, source })
    })
}

fn pick_name(driver: &Driver, request: &RunRequest) -> Result<Name, RunError> {
    let taken: Vec<String> = driver.node_names()?.iter().map(name::text).collect();
    match &request.name {
        None => Ok(Name::generate(&taken)),
        Some(name) if taken.iter().any(|one| one == name.as_str()) => {
            Err(RunError::NameTaken(name.clone()))
        }
        Some(name) => Ok(name.clone()),
    }
}

fn open(driver: &Driver, source: &Source) -> Result<Bootable, RunError> {
    match source {
        Source::Image(name) => Ok(Bootable::of_image(driver, name)?),
        Source::Files(files, payload) => Ok(Bootable::files(files, *payload)?),
    }
}

/// Checks the request before anything is taken.
fn preflight(
    driver: &Driver,
    root: &Root,
    request: &RunRequest,
    bootable: &Bootable,
) -> Result<(), RunError> {
    let topology = Topology::read(root);
    let (machine, cpus) = driver.machine()?;
    Cores::new(&topology, &cpus).choose(&request.cores, None)?;
    let base = BaseMemory::read(root);
    check_available(&request.memory, &topology, base, machine.pool_free)?;
    let asked = request
        .memory
        .iter()
        .fold(0_u64, |sum, spec| sum.saturating_add(spec.size.0));
    let needed = bootable
        .loadable
        .footprint
        .saturating_add(bootable.initrd_size);
    if needed > asked {
        let (needed, asked) = (Size(needed), Size(asked));
        return Err(RunError::TooSmall {
            release: bootable.loadable.release.clone(),
            needed,
            asked,
        });
    }
    Ok(())
}

fn take_devices(node: &Node, devices: &[Selected]) -> Result<(), DeviceError> {
    for device in devices {
        let taken = node.add_device(device.address.to_abi());
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
    clock: Clock,
}

type Taken = (Node, Layout, Vec<ChosenCore>, Vec<u32>);

impl Start<'_> {
    /// Chooses cores, lays the node out for them and takes them; retries if another process takes
    /// them first.
    fn take_cores(&mut self, memory: &Memory) -> Result<Taken, RunError> {
        let chunks = memory.chunks()?;
        let numa_node = self.request.memory.iter().find_map(|spec| spec.numa_node);
        let restart = RestartRecord {
            policy: self.request.policy,
            history: History::default(),
        };
        let root = self.request.root.as_ref();
        for _ in 0..CHOICES_MAX {
            let (machine, cpus) = self.driver.machine()?;
            let available = Cores::new(&Topology::read(self.root), &cpus);
            let chosen = available.choose(&self.request.cores, numa_node)?;
            let later = (self.request.cores_max as usize).saturating_sub(chosen.len());
            let spares = available.spare_apic_ids(&chosen, later);
            let apic_ids: Vec<u32> = chosen.iter().map(|one| one.apic_id).collect();
            let setup = Setup {
                bootable: self.bootable,
                append: &self.request.append,
                cpus: &apic_ids,
                spare_cpus: &spares,
                chunks: &chunks,
                shared: self.shared.map_or(&[], |shared| &shared.chunks),
                devices: self.devices,
                machine: &machine,
                restart: &restart,
                described: self.request.described.as_ref(),
                root: root.and_then(NodeRoot::folder),
                root_image: root.and_then(NodeRoot::image).map(RootImage::record),
                disks: &self.request.disks,
                network: None,
                dump_on_crash: self.request.dump_on_crash,
            };
            let layout = self.clock.measure(Step::Layout, || setup.lay_out())?;
            // The lock is held until the module has the node's record.
            let claimed = claims::take(self.driver, self.root, self.request, &self.name)?;
            let setup = Setup {
                network: claimed.network.as_ref(),
                ..setup
            };
            let record = setup.record(&layout)?;
            let numbers: Vec<u32> = chosen.iter().map(|one| one.cpu).collect();
            let (driver, name) = (self.driver, self.name.to_abi());
            let created = self.clock.measure(Step::TakeCores, || {
                driver.create_node(&name, &record, &numbers, memory)
            });
            match created {
                Ok(node) => {
                    return Ok((node, layout, chosen.clone(), available.split_cores(&chosen)));
                }
                // A core was taken, or went offline, meanwhile.
                Err(error) if matches!(error.errno, Errno::EBUSY | Errno::ENODEV) => {}
                Err(error) if error.errno == Errno::EEXIST => {
                    self.name = pick_name(self.driver, self.request)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(RunError::Contended)
    }

    /// Loads kernel, initrd and all tables into the node's memory.
    fn load(
        &mut self,
        memory: &Memory,
        mapping: &mut Mapping,
        layout: &Layout,
    ) -> Result<(), RunError> {
        let bootable = self.bootable;
        self.clock.measure(Step::Load, || {
            bootable.load(memory, mapping, layout.kernel, layout.initrd)
        })?;
        self.clock
            .measure(Step::Layout, || write_layout(mapping, layout))?;
        Ok(())
    }
}

/// The measured steps.
#[derive(Clone, Copy)]
enum Step {
    AllocateMemory,
    TakeCores,
    Layout,
    Load,
}

/// Time spent in each step.
#[derive(Clone, Copy, Debug, Default)]
struct Clock([Duration; 4]);

impl Clock {
    fn measure<T>(&mut self, step: Step, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = work();
        self.0[step as usize] += began.elapsed();
        result
    }

    fn timing(self, read: Duration, info: &abi::NodeInfo, tsc_khz: u32, began_tsc: u64) -> Timing {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let of = |step: Step| ns(self.0[step as usize]);
        Timing {
            load_ns: of(Step::Load).saturating_add(ns(read)),
            take_memory_ns: of(Step::AllocateMemory),
            take_cores_ns: of(Step::TakeCores),
            layout_ns: of(Step::Layout),
            start_ns: ticks_to_ns(info.start_tsc, info.entry_tsc, tsc_khz),
            total_ns: ticks_to_ns(began_tsc, info.entry_tsc, tsc_khz),
        }
    }
}

/// Nanoseconds between two values of the time stamp counter; 0 if the later one is missing.
fn ticks_to_ns(from: u64, to: u64, tsc_khz: u32) -> u64 {
    let ticks = u128::from(to.saturating_sub(from));
    let ns = ticks * 1_000_000 / u128::from(tsc_khz.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks() {
        assert_eq!(ticks_to_ns(1000, 4000, 3_000_000), 1000);
        assert_eq!(ticks_to_ns(1000, 0, 3_000_000), 0);
        assert_eq!(ticks_to_ns(0, u64::MAX, 0), u64::MAX);
    }

    #[test]
    fn time_is_booked_to_its_step() {
        let mut clock = Clock::default();
        clock.measure(Step::TakeCores, || {
            std::thread::sleep(Duration::from_millis(2))
        });
        let info = abi::NodeInfo {
            start_tsc: 2000,
            entry_tsc: 5000,
            ..Default::default()
        };
        let timing = clock.timing(Duration::from_nanos(7), &info, 1_000_000, 1000);
        assert!(timing.take_cores_ns >= 2_000_000);
        assert_eq!(
            (timing.load_ns, timing.layout_ns, timing.take_memory_ns),
            (7, 0, 0)
        );
        assert_eq!((timing.start_ns, timing.total_ns), (3000, 4000));
    }
}
