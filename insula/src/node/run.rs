//! Starting a node.
//!
//! Look (nothing is touched), take memory, choose and take cores, lay out, load, start. Until the
//! start, all belongs to descriptors of this process: whatever ends it gives everything back.

use std::time::{Duration, Instant};

use insula_abi as abi;
use insula_boot::{Layout, LayoutError};
use nix::errno::Errno;
use serde::Serialize;

use super::claims::{self, ClaimError};
use super::root_image::SharedImage;
use super::setup::{RecordTooLong, Setup, begin, write_layout};
use super::take::{TakeError, take_memory};
use super::{Described, Forbidden, LifeRecord, NodeRoot, RootImage, RootImageError};
use crate::cores::{Chosen, CoreError, CoreRequest, View};
use crate::device::{self, DeviceError, PciAddress, Selected};
use crate::driver::{CallError, Driver, DriverError, Mapping, Memory, Node};
use crate::image::{self, Bootable, Files, FilesError, LoadError, Payload};
use crate::memory::{MemoryError, MemorySpec, check_available};
use crate::name::{self, Name};
use crate::policy::{History, Policy};
use crate::root::Root;
use crate::topology::{BaseMemory, Topology};
use crate::units::{CpuList, Size};
use crate::virtio::{DiskFile, Networking, Publish};

/// How often cores are chosen anew when somebody else was faster.
const CHOICES_MAX: u32 = 8;

/// What a node is started from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A resident image.
    Image(Name),
    /// Files, in this form.
    Files(Files, Payload),
}

/// A node to start.
#[derive(Clone, Debug)]
pub struct RunRequest {
    /// From what.
    pub source: Source,
    /// Its name; one is made when none is given.
    pub name: Option<Name>,
    /// Its cores.
    pub cores: CoreRequest,
    /// Most cores that it may have later, those it starts with included.
    pub cores_max: u32,
    /// Its memory, all of these together.
    pub memory: Vec<MemorySpec>,
    /// PCI functions that are to be its own.
    pub devices: Vec<PciAddress>,
    /// Take devices that the base needs, too.
    pub force_devices: bool,
    /// Its root, if it is not its image's initial file system: for an agent's image.
    pub root: Option<NodeRoot>,
    /// Its disks, in the order in which it has them.
    pub disks: Vec<DiskFile>,
    /// Its network, if it has any: for an agent's image.
    pub network: Option<Networking>,
    /// Its own part of the command line, after the image's.
    pub append: String,
    /// What becomes of it when it ends. The wish for a crash comes from the command line.
    pub policy: Policy,
    /// By which file it is described, if it is by one.
    pub described: Option<Described>,
    /// Whether a dump is to be kept if it crashes.
    pub dump_on_crash: bool,
}

/// Where the time of a start went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Timing {
    /// Image bytes into node memory; with files, reading them included.
    pub load_ns: u64,
    /// Taking memory from base or pool.
    pub take_memory_ns: u64,
    /// Taking cores from base or pool.
    pub take_cores_ns: u64,
    /// Making tables and writing them to node memory.
    pub layout_ns: u64,
    /// From the module's start of the core to the kernel's first instruction.
    pub start_ns: u64,
    /// From the beginning of this process to the kernel's first instruction.
    pub total_ns: u64,
}

/// A node that was started.
#[derive(Clone, Debug, Serialize)]
pub struct Started {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: u32,
    /// Its cores by the base's numbers, the first boots.
    pub cpus: CpuList,
    /// The ids of their local APICs.
    pub apic_ids: Vec<u32>,
    /// Cores that share a physical core with somebody else's thread.
    pub half_cpus: CpuList,
    /// Where the time went.
    pub timing: Timing,
    /// Why no supervisor looks after it, if none does.
    #[serde(skip)]
    pub unsupervised: Option<String>,
}

/// Why a node was not started. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The name is taken.
    #[error(
        "there is a node '{0}' already; nothing was touched\n\
         choose another name, or remove it with `insula rm {0}`"
    )]
    NameTaken(Name),
    /// The image cannot be had.
    #[error(transparent)]
    Image(#[from] image::FindError),
    /// The files are no good.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The cores cannot be had.
    #[error(transparent)]
    Cores(#[from] CoreError),
    /// The memory cannot be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A device cannot be had.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Another node has what it asks for.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// A port of the base cannot lead to it.
    #[error("the port {publish} cannot be opened: {source}; nothing was touched")]
    Publish {
        /// Which.
        publish: Publish,
        /// Why.
        source: std::io::Error,
    },
    /// The image that is to be its root cannot be had in memory.
    #[error(transparent)]
    RootImage(#[from] RootImageError),
    /// The memory could not be taken.
    #[error(transparent)]
    Take(#[from] TakeError),
    /// Kernel and initrd need more than was asked for.
    #[error(
        "kernel {release} and its initrd need {needed} of memory to start, {asked} are asked for; \
         nothing was touched\n\
         ask for more with --memory"
    )]
    TooSmall {
        /// The kernel.
        release: String,
        /// What they need at least.
        needed: Size,
        /// What was asked for.
        asked: Size,
    },
    /// They cannot be arranged.
    #[error("the node cannot be laid out: {0}; what was taken for it has been given back")]
    Layout(#[from] LayoutError),
    /// Too much to keep.
    #[error(
        "the node's record has {0} bytes, the module keeps {max}; what was taken for it has been \
         given back\n\
         shorten --append", max = abi::DESCRIPTION_MAX
    )]
    Record(usize),
    /// Others were always faster.
    #[error(
        "cores were taken by somebody else {CHOICES_MAX} times in a row; what was taken for the \
         node has been given back\n\
         try again when fewer nodes are being started"
    )]
    Contended,
    /// The bytes could not be brought into place.
    #[error("loading failed: {0}; what was taken for the node has been given back")]
    Load(#[from] LoadError),
    /// The base starts none.
    #[error("{0}; what was taken for the node has been given back\n{way_out}", way_out = .0.way_out())]
    Forbidden(Forbidden),
    /// The module failed.
    #[error("the module failed: {0}; what was taken for the node has been given back")]
    Driver(#[from] DriverError),
    /// The node runs, but cannot be asked.
    #[error("the node '{name}' was started, but: {source}\n`insula ps` shows it")]
    Unknown {
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

/// Starts a node. `began_tsc` is the time stamp counter at the beginning of the process. The
/// descriptor in the answer is the node's supervisor's: see [`crate::supervisor::run`].
///
/// # Errors
/// [`RunError`]; except for [`RunError::Unknown`] nothing is left behind.
pub fn start(
    driver: &Driver,
    root: &Root,
    request: &RunRequest,
    began_tsc: u64,
) -> Result<(Started, Node), RunError> {
    let name = pick_name(driver, request)?;
    let bootable = open(driver, &request.source)?;
    look(driver, root, request, &bootable)?;
    let devices = device::select(root, &request.devices, request.force_devices)?;
    check_ports(request)?;
    claims::check(driver, request)?;
    let mut clock = Clock::default();
    let root_image = request.root.as_ref().and_then(NodeRoot::image);
    let shared = root_image.map(|image| image.share(driver)).transpose()?;
    let memory = clock.measure(Step::TakeMemory, || take_memory(driver, &request.memory))?;
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
        shared.give_to(&node)?;
    }
    let mut mapping = memory.map().map_err(DriverError::from)?;
    start.load(&memory, &mut mapping, &layout)?;
    let Start { clock, name, .. } = start;
    let policy = Policy {
        panic_s: layout.panic_s,
        ..request.policy
    };
    // Before it can end for the first time.
    node.supervise(abi::NodeSupervise {
        hold: policy.hold(),
        flags: 0,
    })?;
    begin(&node, &layout, &bootable.loadable)?;
    let (machine, info) = driver
        .machine()
        .and_then(|(machine, _)| Ok((machine, node.info()?.0)))
        .map_err(|source| RunError::Unknown {
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

/// Later there would be nobody to tell.
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

/// Refuses what cannot be, before anything is taken.
fn look(
    driver: &Driver,
    root: &Root,
    request: &RunRequest,
    bootable: &Bootable,
) -> Result<(), RunError> {
    let topology = Topology::read(root);
    let (machine, cpus) = driver.machine()?;
    View::new(&topology, &cpus).choose(&request.cores, None)?;
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

/// A start under way.
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

type Taken = (Node, Layout, Vec<Chosen>, Vec<u32>);

impl Start<'_> {
    /// Chooses cores, lays the node out for them and takes them; anew when another was faster.
    fn take_cores(&mut self, memory: &Memory) -> Result<Taken, RunError> {
        let chunks = memory.chunks()?;
        let numa_node = self.request.memory.iter().find_map(|spec| spec.numa_node);
        let life = LifeRecord {
            policy: self.request.policy,
            history: History::default(),
        };
        let root = self.request.root.as_ref();
        for _ in 0..CHOICES_MAX {
            let (machine, cpus) = self.driver.machine()?;
            let view = View::new(&Topology::read(self.root), &cpus);
            let chosen = view.choose(&self.request.cores, numa_node)?;
            let later = (self.request.cores_max as usize).saturating_sub(chosen.len());
            let spares = view.spares(&chosen, later);
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
                life: &life,
                described: self.request.described.as_ref(),
                root: root.and_then(NodeRoot::folder),
                root_image: root.and_then(NodeRoot::image).map(RootImage::record),
                disks: &self.request.disks,
                network: None,
                dump_on_crash: self.request.dump_on_crash,
            };
            let layout = self.clock.measure(Step::Layout, || setup.lay_out())?;
            // Others wait from here until the module knows who has it.
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
                Ok(node) => return Ok((node, layout, chosen.clone(), view.halves(&chosen))),
                // Taken, or switched off, since we looked.
                Err(error) if matches!(error.errno, Errno::EBUSY | Errno::ENODEV) => {}
                Err(error) if error.errno == Errno::EEXIST => {
                    self.name = pick_name(self.driver, self.request)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(RunError::Contended)
    }

    /// Brings kernel, initrd and all tables into the node's memory.
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

/// The steps that are measured.
#[derive(Clone, Copy)]
enum Step {
    TakeMemory,
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
            take_memory_ns: of(Step::TakeMemory),
            take_cores_ns: of(Step::TakeCores),
            layout_ns: of(Step::Layout),
            start_ns: ticks_to_ns(info.start_tsc, info.entry_tsc, tsc_khz),
            total_ns: ticks_to_ns(began_tsc, info.entry_tsc, tsc_khz),
        }
    }
}

/// Nanoseconds between two readings of the time stamp counter; 0 when the later one is missing.
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
