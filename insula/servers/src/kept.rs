//! Removing a node with its servers, and with what the base had for its network.

use insula_base::error::Error;
use insula_base::root::Root;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_virtio::forget_network;

use super::change::wait_until_ended;
use super::record;

/// Removes a node; one that runs only if `force` is set. Its servers are forgotten then.
///
/// # Errors
/// As of [`insula_node::remove`]; or, when the node was removed, that a server's record cannot be read, or a
/// supervisor does not end.
pub fn remove_node(driver: &Driver, root: &Root, name: &Name, force: bool) -> Result<(), Error> {
    let node = insula_node::find(driver, name)?;
    let id = node.info.id;
    let network = node.record.and_then(|record| record.network);
    // A record that cannot be read keeps no node from being removed.
    let servers = KeptServers::of(root, id);
    insula_node::remove(driver, name, force)?;
    if let Some(network) = network {
        // Without `nft` there was nothing.
        let _ = forget_network(network.address(id));
    }
    servers?.forget(root)
}

/// Servers that are kept running on a node.
struct KeptServers {
    node_id: u32,
    names: Vec<Name>,
}

impl KeptServers {
    /// Those of the node with this id.
    fn of(root: &Root, node_id: u32) -> Result<Self, Error> {
        let records = record::all(root)?.into_iter();
        let own = records.filter(|record| record.node_id == node_id);
        Ok(Self {
            node_id,
            names: own.map(|record| record.name).collect(),
        })
    }

    /// Forgets them, after their node was removed, and waits until their supervisors have ended: they have
    /// the module open.
    fn forget(&self, root: &Root) -> Result<(), Error> {
        for name in &self.names {
            record::remove(root, self.node_id, name)?;
        }
        let mut names = self.names.iter();
        names.try_for_each(|name| wait_until_ended(root, self.node_id, name))
    }
}

#[cfg(test)]
mod tests {
    use crate::record::{ServerRecord, ServerSpec};

    use super::*;

    #[test]
    fn only_those_of_the_node_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        for node_id in [1, 2] {
            let record = ServerRecord {
                node_id,
                name: "file".parse().unwrap(),
                spec: ServerSpec {
                    command: vec!["insula-files".into()],
                    cpus: Default::default(),
                    place: Default::default(),
                },
                project: None,
            };
            record::write(&root, &record).unwrap();
        }
        KeptServers::of(&root, 1).unwrap().forget(&root).unwrap();
        let left = record::all(&root).unwrap();
        let ids: Vec<_> = left.iter().map(|record| record.node_id).collect();
        assert_eq!(ids, [2]);
    }
}
