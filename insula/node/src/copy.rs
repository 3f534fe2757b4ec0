//! Starting a copy of a node from a snapshot: it goes on where the original was.
//!
//! Its kernel keeps the original's addresses, and the APIC ids of its cores. Its memory shows the
//! snapshot's until it is written; its virtio devices are new, as after the loss of a supervisor.

use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use insula_abi as abi;
use insula_abi::channel::Channels;
use insula_abi::monitor::MONITOR_STATE_SIZE;
use insula_base::error::Error;
use insula_base::root::Root;
use insula_base::topology::Topology;
use insula_base::units::CpuList;
use insula_boot::monitor::{ConfinedCopy, SharedMemory};
use insula_driver::name::Name;
use insula_driver::{CallError, Driver, Node, channel, tsc};
use insula_image::{
    Bootable, Processor, ShownChunk, Snapshot, SnapshotImage, Unsuitable, monitor_digest,
};
use nix::errno::Errno;

use super::claims;
use super::copy_memory::pair;
use super::naming::{check_still_free, pick_name};
use super::root_image::SharedImage;
use super::run::{CHOICES_MAX, GIVEN_BACK, Started, call_failed, contended, module_failed};
use super::timing::{Timing, ticks_to_ns};
use super::{
    CopyRecord, NetworkSpec, NodeRecord, NodeSpec, RestartRecord, RootImage, RootImageRecord,
    RunRequest, spec,
};
use crate::attachment::{CopiedDisks, Networking};
use crate::cores::{ChosenCore, CoreRequest, Cores};
use crate::generation;
use crate::isolation::{self, Isolation, Monitor};
use crate::policy::{History, Policy};

/// Starts a copy.
///
/// # Errors
/// Why it was not; nothing is left behind.
pub(super) fn start(
    driver: &Driver,
    root: &Root,
    request: &RunRequest,
    image: &SnapshotImage,
    began_tsc: u64,
) -> Result<(Started, Node), Error> {
    let snapshot = &image.description;
    check(image, request)?;
    let record: NodeRecord = serde_json::from_value(snapshot.record.clone())
        .map_err(|_| foreign(&image.name, "by another version of insula"))?;
    let is_complete = snapshot.disks.len() == record.disks.len();
    if !is_complete {
        return Err(foreign(&image.name, "by another version of insula"));
    }
    let disks = CopiedDisks::make(root, &image.name, &snapshot.disks)?;
    let request = &with_attachments(request, &record, &disks);
    let (machine, _) = driver.machine().map_err(module_failed)?;
    isolation::check(Isolation::Vmm, &machine)?;
    let processor = Processor::of_machine(machine.tsc_khz);
    let suitable = processor.can_replace(&snapshot.processor);
    suitable.map_err(|why| unsuitable(&image.name, why))?;
    claims::check(driver, root, request)?;
    let root_image = record.root_image.as_ref().map(open_root).transpose()?;
    let shared = root_image.map(|image| image.share(driver)).transpose()?;
    let copy = Copy {
        driver,
        root,
        request,
        image,
        record: &record,
        machine: &machine,
        shared: shared.as_ref(),
    };
    let started = copy.start(began_tsc)?;
    disks.keep();
    Ok(started)
}

/// Has later copies get the pages that this one has written so far before they start: a hint.
pub fn store_written_set(driver: &Driver, name: &Name) {
    let memory = super::find(driver, name).map(|handle| handle.node.memory());
    // The next copy may do it.
    let _ = memory.map(|memory| memory.map(|memory| memory.store_set()));
}

/// Refuses what a copy cannot have, or not of this machine, before anything is taken.
pub(super) fn check(image: &SnapshotImage, request: &RunRequest) -> Result<(), Error> {
    let (name, snapshot) = (&image.name, &image.description);
    let spec = &request.spec;
    let count = snapshot.cpus.len();
    let asked = match (&spec.cpu_list, spec.cpus) {
        (Some(list), _) => list.0.len(),
        (None, asked) => asked.map_or(count, |asked| asked as usize),
    };
    let has_place = has_unmounted_root(snapshot);
    let is_folder = request.attachments.folder().is_some();
    // What is left may be given: cores, network, name, labels, policy, and the folder that is not mounted yet.
    let rest = NodeSpec {
        image: None,
        rootfs: spec.rootfs.clone().filter(|_| !has_place || !is_folder),
        label: Vec::new(),
        no_reboot: false,
        cpus: None,
        cpu_list: None,
        network: NetworkSpec::None,
        ip: None,
        publish: Vec::new(),
        dump_on_crash: false,
        on_hang: spec.on_hang,
        isolation: Isolation::default(),
        ..spec.clone()
    };
    let plain = NodeSpec {
        on_hang: spec.on_hang,
        ..NodeSpec::default()
    };
    if asked != count {
        let what = format!("a copy from the snapshot '{name}' has {count} cores, as its node had");
        return Err(Error::new(what).untouched().about("cpus"));
    }
    if rest != plain {
        return Err(has_its_own(name));
    }
    if !snapshot.is_valid() {
        return Err(foreign(name, "by another version of insula"));
    }
    match monitor_digest() {
        Ok(digest) if digest == snapshot.monitor_sha256 => Ok(()),
        _ => Err(foreign(name, "with another version of the monitor")),
    }
}

/// Whether the original had a folder as root that it has not mounted: each copy can have another one.
fn has_unmounted_root(snapshot: &Snapshot) -> bool {
    let record = serde_json::from_value::<NodeRecord>(snapshot.record.clone());
    record.is_ok_and(|record| record.spec.unmounted_root)
}

/// The request with the network that the original had: its card is there. An address is a new one. And
/// with disks in place of the original's.
fn with_attachments(request: &RunRequest, record: &NodeRecord, disks: &CopiedDisks) -> RunRequest {
    let mut request = request.clone();
    let asked = request.attachments.network.take();
    request.attachments.network = record.network.as_ref().map(|network| {
        asked.unwrap_or_else(|| Networking {
            named: network.named.clone(),
            poll_us: network.poll_us,
            ..Networking::default()
        })
    });
    request.attachments.disks.clone_from(&disks.disks);
    request
}

/// A start in progress.
struct Copy<'a> {
    driver: &'a Driver,
    root: &'a Root,
    request: &'a RunRequest,
    image: &'a SnapshotImage,
    record: &'a NodeRecord,
    machine: &'a abi::Machine,
    /// The image of its root.
    shared: Option<&'a SharedImage>,
}

type Created = (Node, Name, Vec<ChosenCore>, Vec<u32>);

impl Copy<'_> {
    fn snapshot(&self) -> &Snapshot {
        &self.image.description
    }

    fn chunks(&self) -> Vec<abi::Chunk> {
        to_abi(&self.snapshot().memory)
    }

    fn cores(&self) -> CoreRequest {
        match &self.request.spec.cpu_list {
            Some(list) => CoreRequest::List(list.clone()),
            None => CoreRequest::Count(self.snapshot().cpus.len() as u32),
        }
    }

    /// Starts it. `began_tsc` is the time stamp counter at the start of the process.
    fn start(&self, began_tsc: u64) -> Result<(Started, Node), Error> {
        let began = Instant::now();
        let (node, name, cores, half_cpus) = self.create()?;
        let take_cores_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.enter(&node).map_err(call_failed)?;
        let (info, _) = node.info().map_err(call_failed)?;
        let ns = |from, to| ticks_to_ns(from, to, self.machine.tsc_khz);
        let started = Started {
            name: name.to_string(),
            id: info.id,
            cpus: CpuList(cores.iter().map(|one| one.cpu).collect()),
            apic_ids: cores.iter().map(|one| one.apic_id).collect(),
            half_cpus: CpuList(half_cpus),
            timing: Timing {
                take_cores_ns,
                start_ns: ns(info.start_tsc, info.entry_tsc),
                total_ns: ns(began_tsc, info.entry_tsc),
                ..Timing::default()
            },
            unsupervised: None,
            is_copy: true,
        };
        Ok((started, node))
    }

    /// Takes cores, and attaches memory and monitor; retries if another process takes the cores first.
    fn create(&self) -> Result<Created, Error> {
        for _ in 0..CHOICES_MAX {
            let name = pick_name(self.driver, self.root, self.request)?;
            let (_, cpus) = self.driver.machine().map_err(module_failed)?;
            let available = Cores::new(&Topology::read(self.root), &cpus);
            let chosen = available.choose(&self.cores(), None)?;
            if let Some(node) = self.create_on(&name, &chosen)? {
                check_still_free(self.root, self.request, &name)?;
                let half = available.split_cores(&chosen);
                return Ok((node, name, chosen, half));
            }
        }
        Err(contended())
    }

    /// `None`: another process was first.
    fn create_on(&self, name: &Name, chosen: &[ChosenCore]) -> Result<Option<Node>, Error> {
        let apic_ids: Vec<u32> = chosen.iter().map(|one| one.apic_id).collect();
        // The lock is held until the module has the node's record.
        let claimed = claims::take(self.driver, self.root, self.request, name)?;
        let memory = self.driver.show_memory(&self.image.memory, &self.chunks());
        let memory = memory.map_err(module_failed)?;
        let interrupt = generation::renew(&memory, self.record).map_err(module_failed)?;
        let record = self.record(&apic_ids, claimed.network.as_ref());
        let record = serde_json::to_vec(&record).unwrap_or_default();
        let numbers: Vec<u32> = chosen.iter().map(|one| one.cpu).collect();
        let created = self
            .driver
            .create_node(&name.to_abi(), &record, &numbers, &memory);
        match created {
            Ok(node) => {
                self.share_root(&node)?;
                self.confine(&node, &apic_ids, interrupt)
                    .map(|()| Some(node))
            }
            Err(error) if matches!(error.errno, Errno::EBUSY | Errno::ENODEV | Errno::EEXIST) => {
                Ok(None)
            }
            Err(error) => Err(call_failed(error)),
        }
    }

    fn share_root(&self, node: &Node) -> Result<(), Error> {
        self.shared.map_or(Ok(()), |shared| shared.share_with(node))
    }

    fn record(&self, apic_ids: &[u32], network: Option<&Networking>) -> NodeRecord {
        let request = self.request;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        NodeRecord {
            version: spec::VERSION,
            spec: NodeSpec {
                isolation: Isolation::Vmm,
                memory: self.record.spec.memory.clone(),
                unmounted_root: self.record.spec.unmounted_root,
                network: match network {
                    Some(network) => network.spec(),
                    None => NetworkSpec::None,
                },
                ..request.spec.clone()
            },
            cpus: apic_ids.to_vec(),
            spare_cpus: Vec::new(),
            copy: Some(CopyRecord {
                snapshot: self.image.name.to_string(),
                known_cpus: self.snapshot().cpus.clone(),
            }),
            restart: RestartRecord {
                policy: self.policy(),
                history: History::default(),
                watch: request.attachments.watch.clone(),
            },
            network: network.cloned(),
            root: request
                .attachments
                .folder()
                .map(Path::to_owned)
                .or_else(|| self.record.root.clone()),
            disks: request.attachments.disks.clone(),
            created_unix_s: now.map_or(0, |now| now.as_secs()),
            described: request.described.clone(),
            ..self.record.clone()
        }
    }

    /// It cannot be started again: its memory has gone on.
    fn policy(&self) -> Policy {
        Policy {
            remove: self.request.remove,
            reboot: false,
            ..self.request.spec.policy()
        }
    }

    /// Writes the monitor, whose cores go on from the snapshot's states, and attaches it.
    fn confine(&self, node: &Node, apic_ids: &[u32], interrupt: Option<u8>) -> Result<(), Error> {
        let image = Bootable::monitor()?;
        let loadable = image.loadable.clone();
        let states = self.states().map_err(module_failed)?;
        let states: Vec<_> = states.iter().map(Vec::as_slice).collect();
        let copy = ConfinedCopy {
            cpus: apic_ids,
            known_cpus: &self.snapshot().cpus,
            states: &states,
            memory: &self.shared().map_err(module_failed)?,
            tsc_offset: self.snapshot().tsc.wrapping_sub(tsc()),
            interrupt,
            trampoline: self.machine.trampoline,
            nested_paging: isolation::nested_paging(self.machine),
            image: &loadable,
        };
        let monitor = Monitor::with_size(self.driver, image, copy.monitor_size())?;
        monitor
            .attach(node, |chunk| copy.lay_out_monitor(chunk))
            .map_err(|error| {
                Error::new("the copy cannot be confined")
                    .because(error)
                    .leaving(GIVEN_BACK)
            })
    }

    /// The states of the original's cores.
    fn states(&self) -> Result<Vec<Vec<u8>>, insula_driver::DriverError> {
        let mapping = self.image.memory.map_for_reading()?;
        let offsets = (self.snapshot().states..).step_by(MONITOR_STATE_SIZE as usize);
        let read = |offset| {
            let mut state = vec![0; MONITOR_STATE_SIZE as usize];
            mapping.read(offset, &mut state)?;
            Ok(state)
        };
        let offsets = offsets.take(self.snapshot().cpus.len());
        offsets.map(read).collect()
    }

    /// Where the snapshot's frames are, for each piece of the copy's memory.
    fn shared(&self) -> Result<Vec<SharedMemory>, CallError> {
        let frames = self.image.memory.chunks()?;
        let root = self.shared.map_or(&[][..], |shared| &shared.chunks);
        let root = pair(&to_abi(&self.snapshot().shared), root);
        Ok([pair(&self.chunks(), &frames), root].concat())
    }

    /// Has its cores go on.
    fn enter(&self, node: &Node) -> Result<(), CallError> {
        node.lay_out_channels(Channels {
            start: self.record.channels,
            count: channel::COUNT,
            slots: channel::SLOTS,
        })?;
        // Without, it takes longer: what is missing is fetched page by page, or ends the copy.
        let _ = node.memory().and_then(|memory| memory.own_set());
        node.supervise(abi::NodeSupervise {
            keep_cpus: 0,
            flags: 0,
        })?;
        let anywhere = self
            .snapshot()
            .memory
            .first()
            .map_or(0, |chunk| chunk.start);
        node.start(&abi::NodeStart {
            entry: anywhere,
            page_table: anywhere,
            argument: 0,
            power_off: self.snapshot().power_off,
            reset: self.snapshot().reset,
        })
    }
}

fn to_abi(chunks: &[ShownChunk]) -> Vec<abi::Chunk> {
    let chunks = chunks.iter();
    chunks
        .map(|chunk| abi::Chunk {
            start: chunk.start,
            size: chunk.size,
        })
        .collect()
}

/// Opens the image of the root that the original had.
fn open_root(record: &RootImageRecord) -> Result<RootImage, Error> {
    let image = RootImage::find(&record.path)?;
    match image.record() == record {
        true => Ok(image),
        false => Err(root_changed(record)),
    }
}

/// The kernel of a copy has read of the image that it was.
fn root_changed(record: &RootImageRecord) -> Error {
    let path = record.path.display();
    Error::new(format!(
        "the root image {path} has been changed since the snapshot was taken"
    ))
    .untouched()
    .hint("take another snapshot")
}

/// Its kernel relies on another kind of processors.
fn unsuitable(name: &Name, why: Unsuitable) -> Error {
    Error::new(format!(
        "the snapshot '{name}' cannot go on on this machine's processors"
    ))
    .because(why)
    .untouched()
    .hint("start copies on the machine that the snapshot was taken on")
}

fn foreign(name: &Name, how: &str) -> Error {
    Error::new(format!("the snapshot '{name}' was taken {how}"))
        .untouched()
        .hint(format!(
            "remove it with `insula image rm {name}`, and take another one"
        ))
}

fn has_its_own(name: &Name) -> Error {
    Error::new(format!(
        "a copy from the snapshot '{name}' has its node's memory, root, disks, program and command line"
    ))
    .untouched()
    .hint("give only --name, --label, cores, the network's options, --rm, --on-hang and --dump-on-crash")
}
