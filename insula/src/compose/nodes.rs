//! What must be done so that the nodes are those that are asked for.

mod belongings;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use insula_boot::LayoutError;
use serde::Serialize;

use belongings::{Belongings, BelongingsIdentity};

use super::deed::{Deed, NodeReport};
use super::mistake::{Mistake, Span};
use super::present::{Life, Present, PresentNode};
use super::project::{Project, Ready, WantedNode};
use crate::cores::{Chosen, CoreRequest, View};
use crate::device::{self, PciAddress};
use crate::digest::sha256;
use crate::image::{Content, Description};
use crate::memory::{LOW_SIZE, MemorySpec, check_available};
use crate::name::Name;
use crate::node::{Described, RunRequest, Source, Trial};
use crate::policy::Policy;
use crate::root::Root;
use crate::topology::BaseMemory;
use crate::units::{CpuList, Size};

/// A node, and what is to be done about it.
#[derive(Clone, Debug)]
pub struct NodeStep {
    /// Its name.
    pub name: Name,
    /// The project.
    pub project: Name,
    /// What is to be done.
    pub deed: NodeDeed,
    /// What tells that it is ready.
    pub ready: Option<Ready>,
}

/// What is to be done about a node.
#[derive(Clone, Debug)]
pub enum NodeDeed {
    /// Nothing: it runs as it is described.
    Keep,
    /// Start it.
    Start(Box<RunRequest>),
    /// Stop and remove the one that is there, then start it.
    Restart {
        /// What to start.
        request: Box<RunRequest>,
        /// Whether its description has changed; else it had ended.
        changed: bool,
    },
    /// Stop and remove it: the file asks for it no more.
    Remove,
}

impl NodeStep {
    /// What is to be done, in a word.
    #[must_use]
    pub fn report(&self) -> NodeReport {
        let (deed, request) = match &self.deed {
            NodeDeed::Keep => (Deed::Keep, None),
            NodeDeed::Start(request) => (Deed::Start, Some(request)),
            NodeDeed::Restart { request, .. } => (Deed::Restart, Some(request)),
            NodeDeed::Remove => (Deed::Remove, None),
        };
        let cpus = request.and_then(|request| match &request.cores {
            CoreRequest::List(list) => Some(list.clone()),
            CoreRequest::Count(_) => None,
        });
        NodeReport {
            cpus,
            ..NodeReport::new(&self.name, &self.project, deed)
        }
    }
}

/// Compares the nodes that are asked for with those that are there, and chooses cores for all that
/// are to be started. The images that are still to come take `images_size` bytes.
///
/// # Errors
/// All that cannot be.
pub(super) fn steps(
    root: &Root,
    projects: &[Project],
    present: &Present,
    images: &BTreeMap<&Name, &Description>,
    images_size: u64,
) -> Result<Vec<NodeStep>, Vec<Mistake>> {
    let mut planner = Planner::new(present, images);
    for project in projects {
        for node in &project.nodes {
            planner.compare(project, node);
        }
    }
    planner.check_names();
    planner.check_shared_cores();
    planner.see_off(projects);
    planner.choose_cores();
    planner.check_memory(images_size);
    planner.check_layouts();
    planner.check_devices(root);
    planner.check_claims();
    planner.check_ports();
    planner.finish()
}

/// A node that is asked for.
struct Candidate<'a> {
    project: &'a Project,
    node: &'a WantedNode,
    image: &'a Description,
    belongings: Belongings,
    /// Its own part of the command line, with what an agent is told.
    append: String,
    described: Described,
    verdict: Verdict,
    /// Whether a mistake was found that makes others of no account.
    is_refused: bool,
    /// Chosen for one that is to be started.
    cores: Vec<Chosen>,
}

/// What is to be done about a node that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Keep,
    Start,
    Restart { changed: bool },
}

impl Candidate<'_> {
    fn is_started(&self) -> bool {
        self.verdict != Verdict::Keep && !self.is_refused
    }

    fn mistake(&self, at: &Span, message: impl std::fmt::Display, help: &str) -> Mistake {
        self.project.source.mistake(at.clone(), message, help)
    }

    fn mistake_by(&self, at: &Span, error: &dyn std::error::Error) -> Mistake {
        self.project.source.mistake_by(at.clone(), error)
    }

    fn request(&self) -> Box<RunRequest> {
        Box::new(RunRequest {
            source: Source::Image(self.node.image.clone()),
            name: Some(self.node.name.clone()),
            cores: CoreRequest::List(CpuList(self.cores.iter().map(|one| one.cpu).collect())),
            cores_max: self.node.cores_max,
            memory: self.node.memory.clone(),
            devices: self.node.devices.clone(),
            force_devices: self.node.force_devices,
            root: self.belongings.root.clone(),
            disks: self.belongings.disks.clone(),
            network: self.belongings.network.clone(),
            append: self.append.clone(),
            policy: self.node.policy,
            described: Some(self.described.clone()),
            dump_on_crash: self.node.dump_on_crash,
        })
    }

    fn step(&self) -> NodeStep {
        let request = || self.request();
        NodeStep {
            name: self.node.name.clone(),
            project: self.project.name.clone(),
            ready: self.node.ready.clone(),
            deed: match self.verdict {
                Verdict::Keep => NodeDeed::Keep,
                Verdict::Start => NodeDeed::Start(request()),
                Verdict::Restart { changed } => NodeDeed::Restart {
                    request: request(),
                    changed,
                },
            },
        }
    }
}

/// Goes through all nodes and notes what is wrong.
struct Planner<'a> {
    present: &'a Present,
    images: &'a BTreeMap<&'a Name, &'a Description>,
    candidates: Vec<Candidate<'a>>,
    /// Nodes that are asked for no more: name, project, and what is there.
    leaving: Vec<(Name, Name, &'a PresentNode)>,
    mistakes: Vec<Mistake>,
}

impl<'a> Planner<'a> {
    fn new(present: &'a Present, images: &'a BTreeMap<&'a Name, &'a Description>) -> Self {
        Self {
            present,
            images,
            candidates: Vec::new(),
            leaving: Vec::new(),
            mistakes: Vec::new(),
        }
    }

    /// Compares one node with what is there.
    fn compare(&mut self, project: &'a Project, node: &'a WantedNode) {
        let source = &project.source;
        let Some(&image) = self.images.get(&node.image) else {
            let message = format!(
                "there is no image '{}', in this file or resident",
                node.image
            );
            let help = "describe it in the file, or add it with `insula image add`; \
                        `insula image ls` lists those there are";
            let mistake = source.mistake(node.image_at.clone(), message, help);
            return self.mistakes.push(mistake);
        };
        let belongings = match Belongings::find(project, &node.belongings) {
            Ok(belongings) => belongings,
            Err(mistake) => return self.mistakes.push(mistake),
        };
        let described = described(project, node, image, &belongings);
        let verdict = match self.present.nodes.get(&node.name) {
            None => Ok(Verdict::Start),
            Some(there) => verdict(project, there, &described.digest),
        };
        match verdict {
            Ok(verdict) => self.candidates.push(Candidate {
                project,
                node,
                image,
                append: belongings.append(&node.append),
                belongings,
                described,
                verdict,
                is_refused: false,
                cores: Vec::new(),
            }),
            Err((message, help)) => {
                let message = format!("there is a node '{}' already, {message}", node.name);
                let mistake = source.mistake(node.at.clone(), message, help);
                self.mistakes.push(mistake);
            }
        }
    }

    /// No two files name the same node.
    fn check_names(&mut self) {
        let mut seen = BTreeMap::new();
        for one in &mut self.candidates {
            let name = &one.node.name;
            if let Some(other) = seen.insert(name, one.project) {
                let message = format!("{} has a node '{name}' as well", other.path.display());
                let mistake = one.mistake(&one.node.at, message, "give one of them another name");
                self.mistakes.push(mistake);
                one.is_refused = true;
            }
        }
    }

    /// No two nodes ask for the same core by its number.
    fn check_shared_cores(&mut self) {
        let mut seen = BTreeMap::new();
        for one in &mut self.candidates {
            let CoreRequest::List(list) = &one.node.cores else {
                continue;
            };
            let others = list.0.iter().filter_map(|&cpu| {
                let other: &Name = seen.insert(cpu, &one.node.name)?;
                (*other != one.node.name).then_some((cpu, other))
            });
            if let Some((cpu, other)) = others.last() {
                let message = format!("core {cpu} is asked for by the node '{other}' as well");
                let help = "give each node cores of its own";
                let mistake = one.mistake(&one.node.cores_at, message, help);
                self.mistakes.push(mistake);
                one.is_refused = true;
            }
        }
    }

    /// Finds the nodes of these projects that are asked for no more.
    fn see_off(&mut self, projects: &[Project]) {
        for project in projects {
            let is_wanted = |name: &Name| project.nodes.iter().any(|node| node.name == *name);
            let gone = self.present.nodes_of(&project.name);
            let gone = gone.filter(|(name, _)| !is_wanted(name));
            let gone = gone.map(|(name, node)| (name.clone(), project.name.clone(), node));
            self.leaving.extend(gone);
        }
    }

    /// What nodes have that will have gone when others are started.
    fn freed(&self) -> impl Iterator<Item = &'a PresentNode> {
        let is_restarted = |one: &&Candidate| matches!(one.verdict, Verdict::Restart { .. });
        let restarted = self.candidates.iter().filter(is_restarted);
        let restarted = restarted.filter_map(|one| self.present.nodes.get(&one.node.name));
        let leaving = self.leaving.iter().map(|(_, _, node)| *node);
        restarted.chain(leaving)
    }

    /// Those that name their cores choose first, then the largest. When one of these cannot have so
    /// many, the others are not asked.
    fn choose_cores(&mut self) {
        let mut view: View = self.present.view.clone();
        self.freed().for_each(|node| view.vacate(&node.cpus));
        let mut order: Vec<&mut Candidate> = self.candidates.iter_mut().collect();
        order.retain(|one| one.is_started());
        order.sort_by_key(|one| match &one.node.cores {
            CoreRequest::List(_) => (false, Reverse(0)),
            CoreRequest::Count(count) => (true, Reverse(*count)),
        });
        for one in order {
            let numa_node = one.node.memory.iter().find_map(|spec| spec.numa_node);
            match view.choose(&one.node.cores, numa_node) {
                Ok(cores) => {
                    view.occupy(&cores);
                    one.cores = cores;
                }
                Err(error) => {
                    let mistake = one.mistake_by(&one.node.cores_at, &error);
                    self.mistakes.push(mistake);
                    if matches!(one.node.cores, CoreRequest::Count(_)) {
                        return;
                    }
                }
            }
        }
    }

    /// Whether the machine has the memory of all together.
    fn check_memory(&mut self, images_size: u64) {
        let freed: u64 = self.freed().map(|node| node.memory_size).sum();
        let low_freed = self.freed().count() as u64 * LOW_SIZE;
        let Present {
            machine,
            topology,
            base,
            ..
        } = self.present;
        let free = machine.pool_free.saturating_add(freed);
        let base = base.map(|base| BaseMemory {
            available: base.available.saturating_sub(images_size),
            ..base
        });
        let mut specs = Vec::<MemorySpec>::new();
        let mut low = 0;
        for one in self.candidates.iter().filter(|one| one.is_started()) {
            specs.extend(&one.node.memory);
            low += LOW_SIZE;
            if let Err(error) = check_available(&specs, topology, base, free) {
                let mistake = one.mistake_by(&one.node.memory_at, &error);
                return self.mistakes.push(mistake);
            }
            if low > machine.low_free.saturating_add(low_freed) {
                let message = format!(
                    "no {} of memory below 1 MiB are left for it, which every node needs",
                    Size(LOW_SIZE)
                );
                let help = "have fewer nodes: `insula machine info` shows how much there is";
                return self.mistakes.push(one.mistake(&one.node.at, message, help));
            }
        }
    }

    /// Whether kernel, initrd and command line fit.
    fn check_layouts(&mut self) {
        let all = self.candidates.iter();
        for one in all.filter(|one| one.is_started() && !one.cores.is_empty()) {
            let later = (one.node.cores_max as usize).saturating_sub(one.cores.len());
            let trial = Trial {
                kernel: &one.image.loadable,
                initrd_size: one.image.initrd_size,
                image_append: &one.image.append,
                append: &one.append,
                cores: &one.cores,
                spares: &self.present.view.spares(&one.cores, later),
                memory: &one.node.memory,
            };
            if let Err(error) = trial.run(&self.present.machine) {
                let at = match error {
                    LayoutError::CommandLine(_) => &one.node.append_at,
                    _ => &one.node.memory_at,
                };
                self.mistakes.push(one.mistake_by(at, &error));
            }
        }
    }

    /// Whether the devices can be nodes', and no two nodes ask for the same.
    fn check_devices(&mut self, root: &Root) {
        let freed: Vec<_> = self.freed().flat_map(|node| &node.devices).collect();
        let mut seen = BTreeMap::new();
        for one in self.candidates.iter().filter(|one| one.is_started()) {
            let (at, devices) = (&one.node.devices_at, &one.node.devices);
            let others = devices.iter().filter_map(|&device| {
                let other: &Name = seen.insert(device, &one.node.name)?;
                (*other != one.node.name).then_some((device, other))
            });
            if let Some((device, other)) = others.last() {
                let message = format!("device {device} is asked for by the node '{other}' as well");
                let mistake = one.mistake(at, message, "give it to one of them");
                self.mistakes.push(mistake);
                continue;
            }
            // What a node has that will have gone is not the base's, and need not be asked for.
            let is_held = |device: &PciAddress| freed.contains(&device);
            let (held, free): (Vec<_>, Vec<_>) = devices.iter().partition(|one| is_held(one));
            let looked = device::describe(root, &held);
            let looked = looked.and_then(|_| device::select(root, &free, one.node.force_devices));
            if let Err(error) = looked {
                self.mistakes.push(one.mistake_by(at, &error));
            }
        }
    }

    fn finish(self) -> Result<Vec<NodeStep>, Vec<Mistake>> {
        if !self.mistakes.is_empty() {
            return Err(self.mistakes);
        }
        let leaving = self.leaving.into_iter().map(|(name, project, _)| NodeStep {
            name,
            project,
            deed: NodeDeed::Remove,
            ready: None,
        });
        let wanted = self.candidates.iter().map(Candidate::step);
        Ok(wanted.chain(leaving).collect())
    }
}

/// What is to be done about a node of which there is one of that name; or why nothing can be.
fn verdict(
    project: &Project,
    there: &PresentNode,
    digest: &str,
) -> Result<Verdict, (&'static str, &'static str)> {
    let described = there.described.as_ref();
    let ours = described.filter(|by| by.project == project.name.as_str());
    match (ours, there.life) {
        (_, Life::Starting) => Err((
            "which another command is just starting",
            "try again when that has come to its end",
        )),
        (None, _) => Err((
            "which this project has not made",
            "choose another name, or remove it with `insula rm`",
        )),
        (Some(by), Life::Running) if by.digest == digest => Ok(Verdict::Keep),
        (Some(by), _) => Ok(Verdict::Restart {
            changed: by.digest != digest,
        }),
    }
}

/// All that makes a node what it is. Keys that are added later must not be written when they are not
/// given: nodes would be restarted by a new version of the command.
#[derive(Serialize)]
struct Identity<'a> {
    image: &'a Name,
    content: Content,
    cores: &'a CoreRequest,
    cores_max: u32,
    memory: &'a [MemorySpec],
    append: &'a str,
    #[serde(skip_serializing_if = "is_default")]
    dump_on_crash: bool,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    devices: &'a [PciAddress],
    #[serde(skip_serializing_if = "is_default")]
    policy: Policy,
    #[serde(flatten)]
    belongings: BelongingsIdentity<'a>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn described(
    project: &Project,
    node: &WantedNode,
    image: &Description,
    belongings: &Belongings,
) -> Described {
    let identity = Identity {
        image: &node.image,
        content: image.content(),
        cores: &node.cores,
        cores_max: node.cores_max,
        memory: &node.memory,
        append: node.append.trim(),
        dump_on_crash: node.dump_on_crash,
        devices: &node.devices,
        policy: node.policy,
        belongings: belongings.identity(),
    };
    // Serialising to memory fails only for maps with keys that are no text: there are none.
    let digest = sha256(&serde_json::to_vec(&identity).unwrap_or_default());
    Described {
        project: project.name.to_string(),
        file: project.path.clone(),
        digest,
        after: node
            .after
            .iter()
            .map(|(name, _)| name.to_string())
            .collect(),
    }
}
