//! Planning the networks: comparing those that files describe with the existing ones.

use std::collections::{BTreeMap, BTreeSet};

use insula_base::error::Error;
use insula_base::root::Root;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_node::networks::{self, NetworkDefinition, NetworkRequest, Networks, create_planned};

use super::current_state::CurrentState;
use super::diagnostic::Diagnostic;
use super::project::{Project, WantedNetwork};
use super::report::{Action, Event, NetworkReport, Observer};

/// A network, and the planned action.
#[derive(Clone, Debug)]
pub struct NetworkStep {
    /// Name of the network.
    pub name: Name,
    /// Its project.
    pub project: Name,
    /// The action.
    pub action: NetworkAction,
}

/// Action on a network.
#[derive(Clone, Debug)]
pub enum NetworkAction {
    /// None: there is one as described.
    Keep,
    /// Create it.
    Add(NetworkDefinition),
    /// Create it in place of one of the same project, on which there is no node.
    Replace(NetworkDefinition),
    /// Remove it: the file does not describe it any more.
    Remove,
}

impl NetworkStep {
    /// The removal of a project's network.
    pub(super) fn removal(name: &Name, project: &Name) -> Self {
        Self {
            name: name.clone(),
            project: project.clone(),
            action: NetworkAction::Remove,
        }
    }

    /// The action as reported.
    #[must_use]
    pub fn report(&self) -> NetworkReport {
        NetworkReport {
            name: self.name.clone(),
            project: self.project.clone(),
            action: match self.action {
                NetworkAction::Keep => Action::Keep,
                NetworkAction::Add(_) => Action::Add,
                NetworkAction::Replace(_) => Action::Replace,
                NetworkAction::Remove => Action::Remove,
            },
            error: None,
        }
    }

    /// Creates the network, if that is planned.
    pub(super) fn create(
        &self,
        driver: &Driver,
        root: &Root,
        observer: Observer,
    ) -> Result<(), Error> {
        match &self.action {
            NetworkAction::Keep | NetworkAction::Remove => {}
            NetworkAction::Add(planned) => {
                create_planned(driver, root, planned).map_err(others_kept)?;
                observer(&Event::NetworkAdded(&self.name));
            }
            NetworkAction::Replace(planned) => {
                networks::remove(driver, root, &self.name).map_err(others_kept)?;
                create_planned(driver, root, planned).map_err(others_kept)?;
                observer(&Event::NetworkReplaced(&self.name));
            }
        }
        Ok(())
    }

    /// Removes the network, if that is planned. Returns why it could not be removed, if it could not.
    pub(super) fn remove(
        &self,
        driver: &Driver,
        root: &Root,
        observer: Observer,
    ) -> Option<String> {
        let NetworkAction::Remove = self.action else {
            return None;
        };
        match networks::remove(driver, root, &self.name) {
            Ok(()) => {
                observer(&Event::NetworkRemoved(&self.name));
                None
            }
            Err(error) => {
                observer(&Event::NetworkFailed(&error));
                Some(error.to_string())
            }
        }
    }
}

/// The error of a network that was not created.
fn others_kept(error: Error) -> Error {
    error.leaving("no node was touched; images and networks that were added before it are kept")
}

/// Plans all networks. Returns those that there will be, too.
///
/// # Errors
/// All errors in them.
pub(super) fn steps(
    root: &Root,
    projects: &[Project],
    current: &CurrentState,
) -> Result<(Vec<NetworkStep>, Networks), Vec<Diagnostic>> {
    let mut planner = Planner {
        root,
        current,
        networks: current.networks.clone(),
        wanted: BTreeMap::new(),
    };
    let (mut steps, mut diagnostics) = (Vec::new(), Vec::new());
    for project in projects {
        for network in &project.networks {
            match planner.plan(project, network) {
                Ok(action) => steps.extend(action.map(|action| NetworkStep {
                    name: network.name.clone(),
                    project: project.name.clone(),
                    action,
                })),
                Err(diagnostic) => diagnostics.push(diagnostic),
            }
        }
    }
    if !diagnostics.is_empty() {
        return Err(diagnostics);
    }
    let nodes = projects.iter().flat_map(|project| &project.nodes);
    let named: BTreeSet<&Name> = nodes.filter_map(|node| node.spec.network.name()).collect();
    for project in projects {
        let gone = removable(&project.name, current);
        let gone = gone.filter(|name| !planner.wanted.contains_key(name) && !named.contains(name));
        for name in gone.collect::<Vec<_>>() {
            planner.remove(name);
            steps.push(NetworkStep::removal(name, &project.name));
        }
    }
    Ok((steps, planner.networks))
}

/// The networks that a project has created, except those with nodes of other projects.
pub(super) fn removable<'a>(
    project: &'a Name,
    current: &'a CurrentState,
) -> impl Iterator<Item = &'a Name> {
    let is_used = |name: &&Name| {
        let mut nodes = current.nodes_on(name);
        nodes.any(|(_, node)| node.project() != Some(project.as_str()))
    };
    let networks = current.networks_of(project);
    let names = networks.map(|network| &network.network.name);
    names.filter(move |name| !is_used(name))
}

/// Plans one network after the other.
struct Planner<'a> {
    root: &'a Root,
    current: &'a CurrentState,
    /// Those that there will be by what is planned so far.
    networks: Networks,
    /// Those that files have described so far.
    wanted: BTreeMap<&'a Name, &'a WantedNetwork>,
}

impl<'a> Planner<'a> {
    /// Plans a network; `None` when another file describes the same one.
    fn plan(
        &mut self,
        project: &'a Project,
        network: &'a WantedNetwork,
    ) -> Result<Option<NetworkAction>, Diagnostic> {
        let name = &network.name;
        let refused = |message: String, hint: &str| {
            project
                .source
                .diagnostic(network.spans.at(""), message, hint)
        };
        if let Some(other) = self.wanted.insert(name, network) {
            let is_same = (other.subnet, other.internal) == (network.subnet, network.internal);
            let message = format!("another file describes a network '{name}' otherwise");
            return match is_same {
                true => Ok(None),
                false => Err(refused(message, "give one of them another name")),
            };
        }
        let action = match self.current.networks.find(name) {
            None => NetworkAction::Add(self.define(project, network)?),
            Some(there) if is_as_described(there, network) => NetworkAction::Keep,
            Some(there) if there.project.as_ref() != Some(&project.name) => {
                let message = format!(
                    "there already is a network '{name}', which is another one and was not created \
                     by this project"
                );
                let hint =
                    format!("use another name, or remove it with `insula network rm {name}`");
                return Err(refused(message, &hint));
            }
            Some(_) => match self.current.nodes_on(name).next() {
                Some((node, _)) => {
                    let message = format!("the network '{name}' cannot change: '{node}' is on it");
                    let hint = "`insula down` removes the project's nodes and networks";
                    return Err(refused(message, hint));
                }
                None => {
                    self.remove(name);
                    NetworkAction::Replace(self.define(project, network)?)
                }
            },
        };
        Ok(Some(action))
    }

    /// There will be none of that name.
    fn remove(&mut self, name: &Name) {
        let named = &mut self.networks.named;
        named.retain(|one| one.network.name != *name);
    }

    /// What a network is to be that is created.
    fn define(
        &mut self,
        project: &Project,
        network: &WantedNetwork,
    ) -> Result<NetworkDefinition, Diagnostic> {
        let request = NetworkRequest {
            name: network.name.clone(),
            subnet: network.subnet,
            internal: network.internal,
            project: Some(project.name.clone()),
            file: Some(project.path.clone()),
        };
        let planned = self.networks.plan(self.root, &request).map_err(|error| {
            let at = network.spans.at(error.option);
            project.source.diagnostic_from(at, &error)
        })?;
        self.networks.named.push(planned.clone());
        Ok(planned)
    }
}

fn is_as_described(there: &NetworkDefinition, network: &WantedNetwork) -> bool {
    let subnet = there.network.subnet;
    let is_there = network.subnet.is_none_or(|wanted| wanted == subnet);
    is_there && there.network.internal == network.internal
}
