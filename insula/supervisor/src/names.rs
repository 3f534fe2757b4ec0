//! Addresses of nodes and containers by their names, for nodes that ask for them.

use std::fs;
use std::net::Ipv4Addr;
use std::sync::Arc;

use insula_agent::network::Network;
use insula_base::state::RUN;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_node::Handle;
use insula_virtio::Names;
use serde_json::Value;

/// The addresses of what there is on a network when they are asked for.
pub(super) fn names(driver: &Arc<Driver>, network: Network) -> Names {
    let driver = Arc::clone(driver);
    Arc::new(move |name| {
        let name = name.parse().ok()?;
        let address = node(&driver, &name).or_else(|| container(&name));
        address.filter(|address| network.contains(*address))
    })
}

/// No names, for a node without a network.
pub(super) fn none() -> Names {
    Arc::new(|_| None)
}

/// The address of a running node on the network.
fn node(driver: &Driver, name: &Name) -> Option<Ipv4Addr> {
    let node = driver.open_node(&name.to_abi()).ok()?;
    let handle = Handle::of(node).ok().filter(Handle::is_running)?;
    let network = handle.record.as_ref()?.network.as_ref()?;
    Some(network.address(handle.info.id))
}

/// The address in a container's record (`insula_exec::container`).
fn container(name: &Name) -> Option<Ipv4Addr> {
    let record = fs::read(format!("{RUN}/containers/{name}.json")).ok()?;
    let record: Value = serde_json::from_slice(&record).ok()?;
    record["address"].as_str()?.parse().ok()
}
