//! What an upgrade is to do, and what is in its way.

use insula_agent::container::{ContainerState, Phase};
use insula_base::error::Error;
use insula_base::root::Root;
use insula_base::units::Size;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_image::Bootable;
use insula_node as node;
use insula_node::{Attachments, Handle, NodeRecord, NodeSpec, RunRequest, Source};
use serde::Serialize;

use super::{UpgradeRequest, beside};
use crate::container::{self, ContainerRecord};

/// What an upgrade would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Planned {
    /// The node.
    pub node: Name,
    /// The release of its kernel.
    pub from: String,
    /// That of the kernel that takes its place.
    pub to: String,
    /// Cores that the new node gets.
    pub cpus: u32,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// Containers that are moved.
    pub containers: Vec<Name>,
    /// Containers that have ended, whose logs go with the old node.
    pub ended: Vec<Name>,
}

/// An upgrade that can be made.
pub(super) struct Plan {
    pub(super) planned: Planned,
    /// The new node.
    pub(super) request: RunRequest,
}

impl Plan {
    /// Plans an upgrade.
    ///
    /// # Errors
    /// What is in the way; nothing was touched.
    pub(super) fn make(
        driver: &Driver,
        root: &Root,
        request: &UpgradeRequest<'_>,
    ) -> Result<Self, Error> {
        let name = request.node;
        let record = container::check_node(driver, name)?.record;
        let handle = node::find(driver, name)?;
        check_alone(name, &handle, &record)?;
        let bootable = Bootable::of_image(driver, request.image)?;
        check_image(request.image, &bootable)?;
        let run = new_node(&handle, &record, request)?;
        node::check_start(driver, root, &run).map_err(|error| {
            let what = format!("there is no room for another node beside '{name}'");
            error.context(what).untouched()
        })?;
        let records = container::all(driver, root)?;
        let containers = running(driver, &records, name)?;
        check_containers(driver, name, &containers)?;
        let there = records.iter().filter(|one| one.node == *name);
        let ended = there.map(|one| one.name.clone());
        let ended = ended.filter(|one| !containers.contains(one)).collect();
        let planned = Planned {
            node: name.clone(),
            from: record.release,
            to: bootable.loadable.release,
            cpus: handle.info.cpus_count,
            memory_bytes: handle.info.memory_size,
            containers,
            ended,
        };
        Ok(Self {
            planned,
            request: run,
        })
    }
}

/// Checks whether containers can leave a node.
fn check_containers(driver: &Driver, node: &Name, containers: &[Name]) -> Result<(), Error> {
    let location = node.clone().into();
    container::check_node_alone(driver, &location)
        .map_err(|error| error.context(not_upgraded(node)).untouched())?;
    containers.iter().try_for_each(|name| {
        container::check_container(driver, &location, name).map_err(|error| {
            let what = format!("the container '{name}' cannot be moved");
            error.context(what).untouched()
        })
    })
}

/// Of these containers those that run on a node.
///
/// # Errors
/// When its agent does not answer.
pub(super) fn running(
    driver: &Driver,
    records: &[ContainerRecord],
    node: &Name,
) -> Result<Vec<Name>, Error> {
    let there = container::ask_there(driver, &node.clone().into())?;
    let runs = |one: &ContainerState| !matches!(one.phase, Phase::Exited(_));
    let runs_there = |record: &&ContainerRecord| {
        let mut there = there.iter().filter(|one| runs(one));
        record.node == *node && there.any(|one| one.spec.name == record.name.as_str())
    };
    let found = records.iter().filter(runs_there);
    Ok(found.map(|record| record.name.clone()).collect())
}

/// The new node: as the old one, of the other image, on any cores.
fn new_node(
    handle: &Handle,
    old: &NodeRecord,
    request: &UpgradeRequest<'_>,
) -> Result<RunRequest, Error> {
    let mut spec = NodeSpec {
        image: Some(request.image.clone()),
        cpus: Some(handle.info.cpus_count),
        cpu_list: None,
        // It will have the old one's name.
        hostname: old
            .spec
            .hostname
            .clone()
            .or(request.node.as_str().parse().ok()),
        ..old.spec.clone()
    };
    grow(&mut spec, handle.info.memory_size);
    Ok(RunRequest {
        source: Source::Image(request.image.clone()),
        name: Some(beside(request.node)?),
        cores: spec.cores(),
        attachments: Attachments::find(&spec)?,
        described: old.described.clone(),
        remove: old.restart.policy.remove,
        is_created: false,
        is_attached: false,
        spec,
    })
}

/// Gives it the memory that the old one has got since its start, too.
fn grow(spec: &mut NodeSpec, now: u64) {
    /// What the layout adds is less than this.
    const BLOCK: u64 = 1 << 20;
    let added = now.saturating_sub(spec.memory_size()) / BLOCK * BLOCK;
    if let Some(first) = spec.memory.first_mut() {
        first.size = Size(first.size.0 + added);
    }
}

/// Refuses a node of which there cannot be two, or that has more than containers.
fn check_alone(name: &Name, handle: &Handle, record: &NodeRecord) -> Result<(), Error> {
    let spec = &record.spec;
    let has = [
        (
            !handle.is_running(),
            "it does not run",
            "`insula restart` starts it with its image as it is now",
        ),
        (
            spec.program.is_some(),
            "it runs a program of its own, which is not moved",
            "run that as a container: `insula exec --container`",
        ),
        (
            !spec.device.is_empty(),
            "it has PCI functions, which only one node can have",
            "containers can be moved by hand to a node without",
        ),
        (
            spec.ip.is_some() || !spec.publish.is_empty(),
            "it has an address or ports of its own, which only one node can have",
            "containers have addresses of their own, which go with them: start it without --ip and --publish",
        ),
        (
            record.disks.iter().any(|disk| !disk.read_only),
            "it writes to a disk, which only one node can do",
            "attach it read-only, or move the containers by hand to a node without",
        ),
    ];
    match has.into_iter().find(|(has, ..)| *has) {
        None => Ok(()),
        Some((_, why, hint)) => {
            let error = Error::new(not_upgraded(name)).because(why);
            Err(error.untouched().hint(hint))
        }
    }
}

fn check_image(image: &Name, bootable: &Bootable) -> Result<(), Error> {
    match bootable
        .initrd
        .as_deref()
        .is_some_and(insula_image::is_agent)
    {
        true => Ok(()),
        false => Err(Error::new(format!("the image '{image}' has no agent"))
            .untouched()
            .hint("`insula image build --criu` makes images with one")),
    }
}

fn not_upgraded(name: &Name) -> String {
    format!("the node '{name}' cannot be upgraded")
}
