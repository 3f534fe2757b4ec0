//! Planning the nodes: comparing those that files describe with the existing ones.

mod candidate;
mod conflicts;
mod identity;
mod servers;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use insula_base::root::Root;
use insula_base::topology::BaseMemory;
use insula_base::units::Size;
use insula_driver::name::Name;
use insula_image::Description;
use insula_node::cores::{CoreRequest, Cores};
use insula_node::device::{self, PciAddress};
use insula_node::memory::{LOW_SIZE, MemorySpec, check_available};
use insula_node::networks::Networks;
use insula_node::spec::Ready;
use insula_node::{Attachments, DryRun, RunRequest};

use candidate::{Candidate, Decision, decide};
use identity::described;

use super::current_state::{CurrentNode, CurrentState};
use super::diagnostic::Diagnostic;
use super::project::{Project, WantedNode, WantedServer};
use super::report::{Action, NodeReport};

/// A node, and the planned action.
#[derive(Clone, Debug)]
pub struct NodeStep {
    /// Name of the node.
    pub name: Name,
    /// Its project.
    pub project: Name,
    /// The action.
    pub action: NodeAction,
    /// The mark by which it is known to be ready.
    pub ready: Option<Ready>,
    /// Servers that are to run on it.
    pub servers: Vec<WantedServer>,
}

/// Action on a node.
#[derive(Clone, Debug)]
pub enum NodeAction {
    /// None: it runs as described.
    Keep,
    /// Start it.
    Start(Box<RunRequest>),
    /// Stop and remove the existing one, then start it.
    Restart {
        /// The start.
        request: Box<RunRequest>,
        /// Whether its description has changed; otherwise it had stopped.
        changed: bool,
    },
    /// Stop and remove it: the file does not describe it any more.
    Remove,
}

impl NodeStep {
    /// The action as reported.
    #[must_use]
    pub fn report(&self) -> NodeReport {
        let (action, request) = match &self.action {
            NodeAction::Keep => (Action::Keep, None),
            NodeAction::Start(request) => (Action::Start, Some(request)),
            NodeAction::Restart { request, .. } => (Action::Restart, Some(request)),
            NodeAction::Remove => (Action::Remove, None),
        };
        let cpus = request.and_then(|request| match &request.cores {
            CoreRequest::List(list) => Some(list.clone()),
            CoreRequest::Count(_) => None,
        });
        NodeReport {
            cpus,
            ..NodeReport::new(&self.name, &self.project, action)
        }
    }
}

/// The machine as nodes find it that are started by a plan.
#[derive(Debug)]
pub(super) struct Machine<'a> {
    pub(super) root: &'a Root,
    /// Its present state.
    pub(super) current: &'a CurrentState,
    /// The images that there will be.
    pub(super) images: &'a BTreeMap<&'a Name, &'a Description>,
    /// Bytes that those take that are still to be added.
    pub(super) images_size: u64,
    /// The networks that there will be.
    pub(super) networks: &'a Networks,
}

/// Plans all nodes: compares them with the existing ones, and chooses cores for all that are to be
/// started.
///
/// # Errors
/// All errors.
pub(super) fn steps(
    projects: &[Project],
    machine: &Machine<'_>,
) -> Result<Vec<NodeStep>, Vec<Diagnostic>> {
    let mut planner = Planner::new(machine);
    for project in projects {
        for node in &project.nodes {
            planner.compare(project, node);
        }
    }
    planner.check_names();
    planner.check_shared_cores();
    planner.find_removed(projects);
    planner.choose_cores();
    planner.check_memory(machine.images_size);
    planner.check_layouts();
    planner.check_devices(machine.root);
    planner.check_claims();
    planner.check_ports();
    planner.check_servers();
    planner.finish()
}

/// Compares all nodes, and collects errors.
struct Planner<'a> {
    current: &'a CurrentState,
    images: &'a BTreeMap<&'a Name, &'a Description>,
    networks: &'a Networks,
    candidates: Vec<Candidate<'a>>,
    /// Nodes that are described no more: name, project, and current state.
    removed: Vec<(Name, Name, &'a CurrentNode)>,
    diagnostics: Vec<Diagnostic>,
}

impl<'a> Planner<'a> {
    fn new(machine: &Machine<'a>) -> Self {
        Self {
            current: machine.current,
            images: machine.images,
            networks: machine.networks,
            candidates: Vec::new(),
            removed: Vec::new(),
            diagnostics: Vec::new(),
        }
    }

    /// Compares one node with its current state.
    fn compare(&mut self, project: &'a Project, node: &'a WantedNode) {
        let source = &project.source;
        let Some(&image) = self.images.get(&node.image) else {
            let message = format!(
                "there is no image '{}', neither in this file nor resident",
                node.image
            );
            let hint = "describe it in the file, or add it with `insula image add`; \
                        `insula image ls` lists the resident ones";
            let diagnostic = source.diagnostic(node.spans.at("image"), message, hint);
            return self.diagnostics.push(diagnostic);
        };
        let attachments = match Attachments::find_among(&node.spec, self.networks) {
            Ok(attachments) => attachments,
            Err(error) => {
                let diagnostic = source.diagnostic_from(node.spans.at(error.option), &error);
                return self.diagnostics.push(diagnostic);
            }
        };
        let described = described(project, node, image, &attachments);
        let decision = match self.current.nodes.get(&node.name) {
            None => Ok(Decision::Start),
            Some(there) => decide(project, there, &described.digest),
        };
        match decision {
            Ok(decision) => self.candidates.push(Candidate {
                project,
                node,
                image,
                attachments,
                described,
                decision,
                is_refused: false,
                cores: Vec::new(),
            }),
            Err((message, hint)) => {
                let message = format!("there already is a node '{}', {message}", node.name);
                let diagnostic = source.diagnostic(node.spans.at(""), message, hint);
                self.diagnostics.push(diagnostic);
            }
        }
    }

    /// Refuses a name that two files use.
    fn check_names(&mut self) {
        let mut seen = BTreeMap::new();
        for one in &mut self.candidates {
            let name = &one.node.name;
            if let Some(other) = seen.insert(name, one.project) {
                let message = format!("{} also describes a node '{name}'", other.path.display());
                let hint = "give one of them another name";
                self.diagnostics.push(one.diagnostic("", message, hint));
                one.is_refused = true;
            }
        }
    }

    /// Refuses a core number that two nodes ask for.
    fn check_shared_cores(&mut self) {
        let mut seen = BTreeMap::new();
        for one in &mut self.candidates {
            let Some(list) = &one.node.spec.cpu_list else {
                continue;
            };
            let others = list.0.iter().filter_map(|&cpu| {
                let other: &Name = seen.insert(cpu, &one.node.name)?;
                (*other != one.node.name).then_some((cpu, other))
            });
            if let Some((cpu, other)) = others.last() {
                let message = format!("core {cpu} is also used by the node '{other}'");
                let hint = "give each node cores of its own";
                let diagnostic = one.diagnostic("cpu_list", message, hint);
                self.diagnostics.push(diagnostic);
                one.is_refused = true;
            }
        }
    }

    /// Finds the nodes of these projects that are described no more.
    fn find_removed(&mut self, projects: &[Project]) {
        for project in projects {
            let is_wanted = |name: &Name| project.nodes.iter().any(|node| node.name == *name);
            let gone = self.current.nodes_of(&project.name);
            let gone = gone.filter(|(name, _)| !is_wanted(name));
            let gone = gone.map(|(name, node)| (name.clone(), project.name.clone(), node));
            self.removed.extend(gone);
        }
    }

    /// The nodes that will be gone when others are started.
    fn freed(&self) -> impl Iterator<Item = &'a CurrentNode> {
        let is_restarted = |one: &&Candidate| matches!(one.decision, Decision::Restart { .. });
        let restarted = self.candidates.iter().filter(is_restarted);
        let restarted = restarted.filter_map(|one| self.current.nodes.get(&one.node.name));
        let removed = self.removed.iter().map(|(_, _, node)| *node);
        restarted.chain(removed)
    }

    /// Lists of cores come first, then the largest counts. After the first count that cannot be
    /// met, the rest is not tried.
    fn choose_cores(&mut self) {
        let mut view: Cores = self.current.view.clone();
        self.freed().for_each(|node| view.mark_free(&node.cpus));
        let mut order: Vec<&mut Candidate> = self.candidates.iter_mut().collect();
        order.retain(|one| one.is_started());
        order.sort_by_key(|one| match one.node.spec.cores() {
            CoreRequest::List(_) => (false, Reverse(0)),
            CoreRequest::Count(count) => (true, Reverse(count)),
        });
        for one in order {
            let (request, numa_node) = (one.node.spec.cores(), one.node.spec.numa_node());
            match view.choose(&request, numa_node) {
                Ok(cores) => {
                    view.mark_used(&cores);
                    one.cores = cores;
                }
                Err(error) => {
                    let diagnostic = one.diagnostic_from(one.node.cores_key(), &error);
                    self.diagnostics.push(diagnostic);
                    if matches!(request, CoreRequest::Count(_)) {
                        return;
                    }
                }
            }
        }
    }

    /// Checks whether the machine has memory for all nodes together.
    fn check_memory(&mut self, images_size: u64) {
        let freed: u64 = self.freed().map(|node| node.memory_size).sum();
        let lowmem_freed = self.freed().count() as u64 * LOW_SIZE;
        let CurrentState {
            machine,
            topology,
            base,
            ..
        } = self.current;
        let free = machine.pool_free.saturating_add(freed);
        let base = base.map(|base| BaseMemory {
            available: base.available.saturating_sub(images_size),
            ..base
        });
        let mut specs = Vec::<MemorySpec>::new();
        let mut low = 0;
        for one in self.candidates.iter().filter(|one| one.is_started()) {
            specs.extend(&one.node.spec.memory);
            low += LOW_SIZE;
            if let Err(error) = check_available(&specs, topology, base, free) {
                let diagnostic = one.diagnostic_from("memory", &error);
                return self.diagnostics.push(diagnostic);
            }
            if low > machine.lowmem_free.saturating_add(lowmem_freed) {
                let message = format!(
                    "{} of memory below 1 MiB are needed for each node, and not left for this one",
                    Size(LOW_SIZE)
                );
                let hint = "use fewer nodes: `insula machine info` shows how much there is";
                return self.diagnostics.push(one.diagnostic("", message, hint));
            }
        }
    }

    /// Checks whether kernel, initrd and command line fit.
    fn check_layouts(&mut self) {
        let all = self.candidates.iter();
        for one in all.filter(|one| one.is_started() && !one.cores.is_empty()) {
            let most = one.node.spec.max_cpus.unwrap_or_default() as usize;
            let later = most.saturating_sub(one.cores.len());
            let dry_run = DryRun {
                kernel: &one.image.loadable,
                initrd_size: one.image.initrd_size,
                image_append: &one.image.append,
                append: &one.attachments.command_line(&one.node.spec),
                cores: &one.cores,
                spare_apic_ids: &self.current.view.spare_apic_ids(&one.cores, later),
                memory: &one.node.spec.memory,
            };
            if let Err(error) = dry_run.run(&self.current.machine) {
                let diagnostic = one.diagnostic_from(error.option, &error);
                self.diagnostics.push(diagnostic);
            }
        }
    }

    /// Checks whether the devices can be passed through, each to one node.
    fn check_devices(&mut self, root: &Root) {
        let freed: Vec<_> = self.freed().flat_map(|node| &node.devices).collect();
        let mut seen = BTreeMap::new();
        for one in self.candidates.iter().filter(|one| one.is_started()) {
            let devices = &one.node.spec.device;
            let others = devices.iter().filter_map(|&device| {
                let other: &Name = seen.insert(device, &one.node.name)?;
                (*other != one.node.name).then_some((device, other))
            });
            if let Some((device, other)) = others.last() {
                let message = format!("device {device} is also used by the node '{other}'");
                let diagnostic = one.diagnostic("device", message, "give it to one of them");
                self.diagnostics.push(diagnostic);
                continue;
            }
            // A device of a node that will be gone is not bound to a driver of the base.
            let is_attached = |device: &PciAddress| freed.contains(&device);
            let (attached, free): (Vec<_>, Vec<_>) =
                devices.iter().partition(|one| is_attached(one));
            let spec = &one.node.spec;
            let checked = device::describe(root, &attached, spec.isolation)
                .and_then(|_| device::select(root, &free, spec.isolation, spec.force_device));
            if let Err(error) = checked {
                self.diagnostics.push(one.diagnostic_from("device", &error));
            }
        }
    }

    fn finish(self) -> Result<Vec<NodeStep>, Vec<Diagnostic>> {
        if !self.diagnostics.is_empty() {
            return Err(self.diagnostics);
        }
        let removed = self.removed.into_iter().map(|(name, project, _)| NodeStep {
            name,
            project,
            action: NodeAction::Remove,
            ready: None,
            servers: Vec::new(),
        });
        let wanted = self.candidates.iter().map(Candidate::step);
        Ok(wanted.chain(removed).collect())
    }
}
