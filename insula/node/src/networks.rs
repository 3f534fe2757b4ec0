//! Networks with names (`insula network create`), beside the one of all nodes.
//!
//! Each is a file that outlasts a reboot of the base, as `/etc/insula` does. Its bridge exists while a node is
//! on it, and its rules with that.

mod definition;

use std::fs;
use std::io;
use std::net::Ipv4Addr;

use insula_agent::network::Network;
use insula_base::error::Error;
use insula_base::root::Root;
use insula_base::state;
use insula_driver::Driver;
use insula_driver::name::{Missing, Name};
use serde::Serialize;

pub use self::definition::{NetworkDefinition, NetworkRequest, Networks, network_names};
use self::definition::{all_named, path, write};
pub(crate) use self::definition::{find, subnets};
use super::claims::LOCK;
use super::{all, created};
use crate::attachment::{self, BRIDGE, NamedNetwork, Subnet};

/// The name of the network of all nodes.
pub const DEFAULT: &str = "default";
/// A network for users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct NetworkView {
    /// Its name.
    pub name: String,
    /// Its addresses; of the one of all nodes only while there is a node or container on it.
    pub subnet: Option<Subnet>,
    /// The base's address, which is gateway and name server.
    pub gateway: Option<Ipv4Addr>,
    /// The bridge that exists while a node is on it.
    pub bridge: String,
    /// Whether it has no way to other hosts.
    pub internal: bool,
    /// When it was created, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_unix_s: Option<u64>,
    /// The project whose file describes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// Nodes on it, also stopped ones.
    pub nodes: Vec<NetworkNode>,
}

/// A node on a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct NetworkNode {
    /// Its name.
    pub name: String,
    /// Its address; none before its first start.
    pub address: Option<Ipv4Addr>,
}

/// Creates a network. Nothing of the base changes before a node is on it.
///
/// # Errors
/// When its name or its addresses are in use, or the file cannot be written.
pub fn create(
    driver: &Driver,
    root: &Root,
    request: &NetworkRequest,
) -> Result<NetworkView, Error> {
    let _locked = state::lock(root, LOCK).map_err(|error| not_written(&request.name, error))?;
    let definition = Networks::read(root, &all(driver)?)?.plan(root, request)?;
    let written = write(root, &definition);
    written.map_err(|error| not_written(&request.name, error))?;
    Ok(definition.view(&[]))
}

/// Creates a network that was planned.
///
/// # Errors
/// When its name, its addresses or its bridge are in use since, or the file cannot be written.
pub fn create_planned(
    driver: &Driver,
    root: &Root,
    planned: &NetworkDefinition,
) -> Result<(), Error> {
    let NamedNetwork {
        name,
        subnet,
        bridge,
        internal,
    } = &planned.network;
    let _locked = state::lock(root, LOCK).map_err(|error| not_written(name, error))?;
    let request = NetworkRequest {
        name: name.clone(),
        subnet: Some(*subnet),
        internal: *internal,
        project: planned.project.clone(),
        file: planned.file.clone(),
    };
    let now = Networks::read(root, &all(driver)?)?.plan(root, &request)?;
    if now.network.bridge != *bridge {
        return Err(has_changed(name));
    }
    write(root, planned).map_err(|error| not_written(name, error))
}

/// All networks, the one of all nodes first.
///
/// # Errors
/// When a file cannot be read, or the module fails.
pub fn networks(driver: &Driver, root: &Root) -> Result<Vec<NetworkView>, Error> {
    let users = users(driver, root)?;
    let named = all_named(root)?;
    let named = named.iter().map(|one| one.view(&users));
    Ok(std::iter::once(default_view(root, &users))
        .chain(named)
        .collect())
}

/// The network of that name.
///
/// # Errors
/// When there is none, or as [`networks`].
pub fn network(driver: &Driver, root: &Root, name: &Name) -> Result<NetworkView, Error> {
    let networks = networks(driver, root)?;
    let names: Vec<_> = networks.iter().map(|one| one.name.clone()).collect();
    let found = networks.into_iter().find(|one| one.name == name.as_str());
    found.ok_or_else(|| unknown(&Missing::among(name.as_str(), names)))
}

/// Removes a network on which there is no node.
///
/// # Errors
/// When there is none of that name, a node is on it, or its file cannot be removed.
pub fn remove(driver: &Driver, root: &Root, name: &Name) -> Result<(), Error> {
    let _locked = state::lock(root, LOCK).map_err(|error| not_written(name, error))?;
    let view = network(driver, root, name)?;
    if name.as_str() == DEFAULT {
        return Err(is_default());
    }
    if let Some(node) = view.nodes.first() {
        return Err(in_use(name, &node.name));
    }
    fs::remove_file(path(root, name)).map_err(|error| not_written(name, error))
}

/// Nodes with the networks that they are on: none is the one of all nodes.
fn users(driver: &Driver, root: &Root) -> Result<Vec<(Option<Name>, NetworkNode)>, Error> {
    let mut users = Vec::new();
    for handle in all(driver)? {
        let network = handle
            .record
            .as_ref()
            .and_then(|record| record.network.as_ref());
        users.extend(network.map(|network| {
            let node = NetworkNode {
                name: insula_driver::name::text(&handle.info.name),
                address: Some(network.address(handle.info.id)),
            };
            (network.named.as_ref().map(|named| named.name.clone()), node)
        }));
    }
    for node in created(driver, root)? {
        users.extend(node.spec.networking().map(|network| {
            let user = NetworkNode {
                name: node.name.to_string(),
                address: network.address,
            };
            (node.spec.network.name().cloned(), user)
        }));
    }
    Ok(users)
}

fn of_network(users: &[(Option<Name>, NetworkNode)], network: Option<&Name>) -> Vec<NetworkNode> {
    let own = users.iter().filter(|(name, _)| name.as_ref() == network);
    own.map(|(_, node)| node.clone()).collect()
}

fn default_view(root: &Root, users: &[(Option<Name>, NetworkNode)]) -> NetworkView {
    let nodes = of_network(users, None);
    let of_nodes = nodes.iter().find_map(|node| node.address).map(Network::of);
    let subnet = of_nodes.or_else(|| attachment::network_of_bridge(root, BRIDGE));
    NetworkView {
        name: DEFAULT.to_owned(),
        subnet: subnet.map(Subnet),
        gateway: subnet.map(Network::base),
        bridge: BRIDGE.to_owned(),
        internal: false,
        created_unix_s: None,
        project: None,
        nodes,
    }
}

impl NetworkDefinition {
    fn view(&self, users: &[(Option<Name>, NetworkNode)]) -> NetworkView {
        let NamedNetwork {
            name,
            subnet,
            bridge,
            internal,
        } = &self.network;
        NetworkView {
            name: name.to_string(),
            subnet: Some(*subnet),
            gateway: Some(subnet.0.base()),
            bridge: bridge.clone(),
            internal: *internal,
            created_unix_s: Some(self.created_unix_s),
            project: self.project.as_ref().map(Name::to_string),
            nodes: of_network(users, Some(name)),
        }
    }
}

fn unknown(missing: &Missing) -> Error {
    let hint = format!("{}`insula network ls` lists all networks", missing.hint());
    Error::new(format!("there is no network '{}'", missing.name()))
        .untouched()
        .hint(hint)
}

fn has_changed(name: &Name) -> Error {
    Error::new(format!("the network '{name}' cannot be created as planned"))
        .because("another one was created meanwhile")
        .untouched()
        .hint("try again")
}

fn is_default() -> Error {
    Error::new("the network of all nodes cannot be removed")
        .unchanged()
        .hint("it is there while a node is on it")
}

fn in_use(name: &Name, node: &str) -> Error {
    Error::new(format!("the node '{node}' is on the network '{name}'"))
        .unchanged()
        .hint(format!("`insula rm {node}` removes the node"))
}

fn not_written(name: &Name, error: io::Error) -> Error {
    Error::new(format!(
        "the file of the network '{name}' cannot be changed"
    ))
    .because(error)
    .unchanged()
}

#[cfg(test)]
mod tests {
    use super::definition::tests::definition;
    use super::*;

    #[test]
    fn nodes_are_on_their_own_network() {
        let node = |name: &str| NetworkNode {
            name: name.to_owned(),
            address: None,
        };
        let back = definition("back", 80);
        let users = [
            (None, node("a")),
            (Some(back.network.name.clone()), node("b")),
        ];
        assert_eq!(back.view(&users).nodes, [node("b")]);
        assert_eq!(of_network(&users, None), [node("a")]);
    }
}
