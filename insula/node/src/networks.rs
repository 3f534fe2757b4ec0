//! Networks with names (`insula network create`), beside the one of all nodes.
//!
//! Each is a file that outlasts a reboot of the base, as `/etc/insula` does. Its bridge exists while a node is
//! on it, and its rules with that.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use insula_agent::network::Network;
use insula_base::error::Error;
use insula_base::root::Root;
use insula_base::state::{self, AtomicFile};
use insula_driver::Driver;
use insula_driver::name::{Missing, Name};
use serde::{Deserialize, Serialize};

use super::claims::{self, LOCK};
use super::{Handle, all, created};
use crate::attachment::{self, BRIDGE, NamedNetwork, Subnet};

/// The name of the network of all nodes.
pub const DEFAULT: &str = "default";
/// Folder of the files.
const FOLDER: &str = "/var/lib/insula/networks";
const ENDING: &str = ".json";
/// Most networks: each has a bridge.
const COUNT_MAX: usize = 64;

/// A network to create.
#[derive(Clone, Debug)]
pub struct NetworkRequest {
    /// Its name.
    pub name: Name,
    /// Its addresses; chosen if not given.
    pub subnet: Option<Subnet>,
    /// Whether it has no way to other hosts.
    pub internal: bool,
}

/// What a network is, as its file has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Definition {
    #[serde(flatten)]
    network: NamedNetwork,
    created_unix_s: u64,
}

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
    let networks = all_named(root)?;
    if request.name.as_str() == DEFAULT || find_among(&networks, &request.name).is_some() {
        return Err(name_taken(&request.name));
    }
    if networks.len() >= COUNT_MAX {
        return Err(too_many());
    }
    let used = used_subnets(&all(driver)?, &networks);
    let subnet = attachment::choose_subnet(root, &used, request.subnet)?;
    let bridges: Vec<_> = networks
        .iter()
        .map(|one| one.network.bridge.as_str())
        .collect();
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let definition = Definition {
        network: NamedNetwork {
            name: request.name.clone(),
            subnet,
            bridge: free_bridge(root, &bridges),
            internal: request.internal,
        },
        created_unix_s: now.map_or(0, |now| now.as_secs()),
    };
    let written = write(root, &definition);
    written.map_err(|error| not_written(&request.name, error))?;
    Ok(definition.view(&[]))
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

/// Names of all networks but the one of all nodes; none without the right to ask.
#[must_use]
pub fn network_names(root: &Root) -> Vec<Name> {
    let files = root.names(FOLDER).into_iter();
    let names = files.filter_map(|file| file.strip_suffix(ENDING)?.parse().ok());
    names.collect()
}

/// The network of that name, for a node that asks for it.
pub(super) fn find(root: &Root, name: &Name) -> Result<NamedNetwork, Error> {
    let networks = all_named(root)?;
    let names = networks.iter().map(|one| one.network.name.to_string());
    match find_among(&networks, name) {
        Some(found) => Ok(found.network.clone()),
        None => Err(unknown(&Missing::among(name.as_str(), names)).about("network")),
    }
}

/// The addresses of all networks with names.
pub(super) fn subnets(root: &Root) -> Result<Vec<Network>, Error> {
    let networks = all_named(root)?.into_iter();
    Ok(networks.map(|one| one.network.subnet.0).collect())
}

fn find_among<'a>(networks: &'a [Definition], name: &Name) -> Option<&'a Definition> {
    networks.iter().find(|one| one.network.name == *name)
}

/// The addresses of networks with names, and of that of all nodes if a node has one.
fn used_subnets(nodes: &[Handle], networks: &[Definition]) -> Vec<Network> {
    let of_all = claims::default_addresses(nodes).into_iter();
    let of_all = of_all.map(Network::of).take(1);
    of_all
        .chain(networks.iter().map(|one| one.network.subnet.0))
        .collect()
}

/// A bridge that no network has, and nobody else has made.
fn free_bridge(root: &Root, taken: &[&str]) -> String {
    let mut numbers = 1_usize..;
    let is_free = |name: &String| {
        !taken.contains(&name.as_str()) && !root.exists(&format!("/sys/class/net/{name}"))
    };
    let free = numbers.find_map(|number| Some(format!("insula{number}")).filter(is_free));
    free.unwrap_or_default()
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
        nodes,
    }
}

impl Definition {
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
            nodes: of_network(users, Some(name)),
        }
    }
}

/// All networks with names.
fn all_named(root: &Root) -> Result<Vec<Definition>, Error> {
    let mut found = Vec::new();
    for name in network_names(root) {
        match fs::read(path(root, &name)) {
            // One that was removed meanwhile is left out.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(unreadable(&name).because(error)),
            Ok(bytes) => {
                let read = serde_json::from_slice(&bytes);
                found.push(read.map_err(|error| unreadable(&name).because(error))?);
            }
        }
    }
    Ok(found)
}

fn path(root: &Root, name: &Name) -> PathBuf {
    root.path(&format!("{FOLDER}/{name}{ENDING}"))
}

fn write(root: &Root, definition: &Definition) -> io::Result<()> {
    let folder = root.path(FOLDER);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)?;
    let file = AtomicFile::create(&folder)?;
    file.file()
        .write_all(&serde_json::to_vec_pretty(definition)?)?;
    file.persist_new(&path(root, &definition.network.name))
        .map_err(|(error, _)| error)
}

fn unknown(missing: &Missing) -> Error {
    let hint = format!("{}`insula network ls` lists all networks", missing.hint());
    Error::new(format!("there is no network '{}'", missing.name()))
        .untouched()
        .hint(hint)
}

fn name_taken(name: &Name) -> Error {
    Error::new(format!("there is a network '{name}' already"))
        .untouched()
        .hint("choose another name: `insula network ls` lists all networks")
}

fn too_many() -> Error {
    Error::new(format!("there are {COUNT_MAX} networks already"))
        .untouched()
        .hint("`insula network prune` removes those without nodes")
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

fn unreadable(name: &Name) -> Error {
    let what = format!("the network '{name}' cannot be read");
    let hint = format!("remove {FOLDER}/{name}{ENDING}, and create the network again");
    Error::new(what).untouched().hint(hint)
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
    use insula_base::root::fake::Tree;

    use super::*;

    fn definition(name: &str, second: u8) -> Definition {
        Definition {
            network: NamedNetwork {
                name: name.parse().unwrap(),
                subnet: Subnet(Network::new(10, second)),
                bridge: format!("insula{second}"),
                internal: false,
            },
            created_unix_s: 7,
        }
    }

    #[test]
    fn a_network_reads_back() {
        let tree = Tree::new(&[]);
        let root = tree.root();
        let (back, front) = (definition("back", 80), definition("front", 81));
        for one in [&back, &front] {
            write(&root, one).unwrap();
        }
        let again = write(&root, &back).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(all_named(&root).unwrap(), [back.clone(), front]);
        assert_eq!(find(&root, &back.network.name).unwrap(), back.network);
        assert_eq!(subnets(&root).unwrap().len(), 2);
        let refused = find(&root, &"bakc".parse().unwrap()).unwrap_err();
        assert!(refused.hint.contains("back"), "{}", refused.hint);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_told() {
        let tree = Tree::new(&[(&format!("{FOLDER}/back.json"), "{")]);
        let refused = all_named(&tree.root()).unwrap_err();
        assert!(refused.hint.contains("back.json"));
    }

    #[test]
    fn a_bridge_is_nobody_elses() {
        let tree = Tree::new(&[("/sys/class/net/insula2/address", "")]);
        assert_eq!(free_bridge(&tree.root(), &["insula1"]), "insula3");
    }

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
