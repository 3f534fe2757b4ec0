//! What networks with names are: as their files have it, and what a further one would be.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use insula_agent::network::Network;
use insula_base::error::Error;
use insula_base::root::Root;
use insula_base::state::AtomicFile;
use insula_driver::name::{Missing, Name};
use serde::{Deserialize, Serialize};

use super::{DEFAULT, unknown};
use crate::Handle;
use crate::attachment::{self, NamedNetwork, Subnet};
use crate::claims;

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
    /// The project whose file describes it.
    pub project: Option<Name>,
    /// The file.
    pub file: Option<PathBuf>,
}

/// What a network is, as its file has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkDefinition {
    /// The network.
    #[serde(flatten)]
    pub network: NamedNetwork,
    /// The project whose file describes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<Name>,
    /// The file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    pub(super) created_unix_s: u64,
}

/// The networks that there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    /// Those with names.
    pub named: Vec<NetworkDefinition>,
    /// The addresses of the one of all nodes, if a node has one.
    of_all: Option<Network>,
}

impl Networks {
    /// Reads them. `nodes` are all.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn read(root: &Root, nodes: &[Handle]) -> Result<Self, Error> {
        Ok(Self {
            named: all_named(root)?,
            of_all: claims::default_addresses(nodes)
                .first()
                .copied()
                .map(Network::of),
        })
    }

    /// Returns the one of a name.
    #[must_use]
    pub fn find(&self, name: &Name) -> Option<&NetworkDefinition> {
        find_among(&self.named, name)
    }

    /// Returns the network of that name, for a node that asks for it.
    ///
    /// # Errors
    /// There is none.
    pub fn get(&self, name: &Name) -> Result<&NamedNetwork, Error> {
        get_among(&self.named, name)
    }

    /// Returns what a further network would be, which is not created.
    ///
    /// # Errors
    /// When its name or its addresses are in use.
    pub fn plan(&self, root: &Root, request: &NetworkRequest) -> Result<NetworkDefinition, Error> {
        if request.name.as_str() == DEFAULT || self.find(&request.name).is_some() {
            return Err(name_taken(&request.name));
        }
        if self.named.len() >= COUNT_MAX {
            return Err(too_many());
        }
        let named = self.named.iter().map(|one| &one.network);
        let used = self.of_all.into_iter();
        let used: Vec<_> = used.chain(named.clone().map(|one| one.subnet.0)).collect();
        let bridges: Vec<_> = named.map(|one| one.bridge.as_str()).collect();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(NetworkDefinition {
            network: NamedNetwork {
                name: request.name.clone(),
                subnet: attachment::choose_subnet(root, &used, request.subnet)?,
                bridge: free_bridge(root, &bridges),
                internal: request.internal,
            },
            project: request.project.clone(),
            file: request.file.clone(),
            created_unix_s: now.map_or(0, |now| now.as_secs()),
        })
    }
}

/// Names of all networks but the one of all nodes; none without the right to ask.
#[must_use]
pub fn network_names(root: &Root) -> Vec<Name> {
    let files = root.names(FOLDER).into_iter();
    let names = files.filter_map(|file| file.strip_suffix(ENDING)?.parse().ok());
    names.collect()
}

/// The network of that name, for a node that asks for it.
pub(crate) fn find(root: &Root, name: &Name) -> Result<NamedNetwork, Error> {
    get_among(&all_named(root)?, name).cloned()
}

fn get_among<'a>(
    networks: &'a [NetworkDefinition],
    name: &Name,
) -> Result<&'a NamedNetwork, Error> {
    let names = networks.iter().map(|one| one.network.name.to_string());
    match find_among(networks, name) {
        Some(found) => Ok(&found.network),
        None => Err(unknown(&Missing::among(name.as_str(), names)).about("network")),
    }
}

/// The addresses of all networks with names.
pub(crate) fn subnets(root: &Root) -> Result<Vec<Network>, Error> {
    let networks = all_named(root)?.into_iter();
    Ok(networks.map(|one| one.network.subnet.0).collect())
}

fn find_among<'a>(networks: &'a [NetworkDefinition], name: &Name) -> Option<&'a NetworkDefinition> {
    networks.iter().find(|one| one.network.name == *name)
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

/// All networks with names.
pub(super) fn all_named(root: &Root) -> Result<Vec<NetworkDefinition>, Error> {
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

pub(super) fn path(root: &Root, name: &Name) -> PathBuf {
    root.path(&format!("{FOLDER}/{name}{ENDING}"))
}

pub(super) fn write(root: &Root, definition: &NetworkDefinition) -> io::Result<()> {
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

fn unreadable(name: &Name) -> Error {
    let what = format!("the network '{name}' cannot be read");
    let hint = format!("remove {FOLDER}/{name}{ENDING}, and create the network again");
    Error::new(what).untouched().hint(hint)
}

#[cfg(test)]
pub(super) mod tests {
    use insula_base::root::fake::Tree;

    use super::*;

    pub(in super::super) fn definition(name: &str, second: u8) -> NetworkDefinition {
        NetworkDefinition {
            network: NamedNetwork {
                name: name.parse().unwrap(),
                subnet: Subnet(Network::new(10, second)),
                bridge: format!("insula{second}"),
                internal: false,
            },
            project: None,
            file: None,
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
    fn a_further_network_has_what_no_other_has() {
        let tree = Tree::new(&[]);
        let mut networks = Networks {
            named: vec![definition("back", 79)],
            of_all: Some(Network::new(10, 80)),
        };
        let request = |name: &str, subnet: Option<&str>| NetworkRequest {
            name: name.parse().unwrap(),
            subnet: subnet.map(|text| text.parse().unwrap()),
            internal: true,
            project: Some("shop".parse().unwrap()),
            file: None,
        };
        let plan = |name, subnet| networks.plan(&tree.root(), &request(name, subnet));
        let front = plan("front", None).unwrap();
        assert_eq!(front.network.subnet.to_string(), "10.81.0.0/16");
        assert!(front.network.internal && front.network.bridge != "insula79");
        assert!(plan("back", None).is_err() && plan(DEFAULT, None).is_err());
        for taken in ["10.79.0.0/16", "10.80.0.0/16"] {
            assert!(plan("front", Some(taken)).is_err());
        }
        networks.named.push(front);
        let found = networks.get(&"front".parse().unwrap()).unwrap();
        assert_eq!(found.bridge, "insula1");
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
}
